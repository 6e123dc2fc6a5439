// Where the panels of a dashboard stand, in pixels: rows opened, repeated panels and rows copied.

import type { Scope } from './variables';

export interface Placed {
  key: string;
  kind: 'row' | 'panel';
  panel: any;
  row: string;
  scope: Scope;
  collapsed: boolean;
  x: number;
  y: number;
  width: number;
  height: number;
}
interface Section {
  row?: any;
  panels: any[];
}
interface Cell {
  panel: any;
  scope: Scope;
  box: { x: number; y: number; w: number; h: number };
}

const COLUMNS = 24;
const UNIT = 30;
const GAP = 8;

function sections(dashboard: any): Section[] {
  const found: Section[] = [{ panels: [] }];
  for (const panel of [...dashboard.panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    if (panel.type === 'row') {
      found.push({ row: panel, panels: [...(panel.panels ?? [])] });
    } else {
      found[found.length - 1].panels.push(panel);
    }
  }
  return found.filter((section) => section.row || section.panels.length);
}

function narrowed(scope: Scope, name: string, value: string): Scope {
  return new Map(scope).set(name, { values: [value], several: scope.get(name)?.several ?? false });
}

function copies(repeat: string | undefined, scope: Scope): Scope[] {
  const values = repeat ? scope.get(repeat)?.values : undefined;
  return repeat && values?.length ? values.map((value) => narrowed(scope, repeat, value)) : [scope];
}

/** A repeated panel takes a place for each value, side by side or one under the other; what stands below moves down. */
function cells(panels: any[], scope: Scope): Cell[] {
  const top = Math.min(...panels.map((panel) => panel.gridPos.y));
  const placed: Cell[] = [];
  let pushed = 0;
  for (const panel of [...panels].sort((a, b) => a.gridPos.y - b.gridPos.y || a.gridPos.x - b.gridPos.x)) {
    const scopes = copies(panel.repeat, scope);
    const { x, y, w, h } = panel.gridPos;
    const down = panel.repeatDirection === 'v';
    const across = down ? 1 : Math.min(scopes.length, panel.maxPerRow ?? 4);
    const width = !panel.repeat || down ? w : COLUMNS / across;
    scopes.forEach((each, index) => {
      const column = panel.repeat && !down ? (index % across) * width : x;
      placed.push({ panel, scope: each, box: { x: column, y: y - top + pushed + Math.floor(index / across) * h, w: width, h } });
    });
    pushed += (Math.ceil(scopes.length / across) - 1) * h;
  }
  return placed;
}

/** Places everything on a page of this width. Collapsed rows are opened, unless `closed` says to leave them as they are. */
export function layout(dashboard: any, scope: Scope, pageWidth: number, closed: boolean): { items: Placed[]; height: number } {
  const column = (pageWidth + GAP) / COLUMNS;
  const items: Placed[] = [];
  let line = 0;
  const put = (kind: Placed['kind'], cell: Cell, row: string, collapsed = false) => {
    const { x, y, w, h } = cell.box;
    const box = { x: x * column, y: (line + y) * (UNIT + GAP), width: w * column - GAP, height: h * (UNIT + GAP) - GAP };
    items.push({ key: String(items.length), kind, panel: cell.panel, row, scope: cell.scope, collapsed, ...box });
  };
  for (const section of sections(dashboard)) {
    for (const each of copies(section.row?.repeat, scope)) {
      const hidden = Boolean(closed && section.row?.collapsed);
      const row = section.row?.title ?? '';
      if (section.row) {
        put('row', { panel: section.row, scope: each, box: { x: 0, y: 0, w: COLUMNS, h: 1 } }, row, hidden);
        line += 1;
      }
      const found = hidden || !section.panels.length ? [] : cells(section.panels, each);
      found.forEach((cell) => put('panel', cell, row));
      line += Math.max(0, ...found.map((cell) => cell.box.y + cell.box.h));
    }
  }
  return { items, height: line * (UNIT + GAP) };
}
