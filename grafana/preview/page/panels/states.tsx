// State timeline and status history: a row for each series, its values as coloured boxes.

import { formattedValueToString, getActiveThreshold, type GrafanaTheme2 } from '@grafana/data';
import { measureText } from '@grafana/ui';
import { lines, type Line } from '../frames';
import { AXIS_HEIGHT, Names, place, TimeAxis, type Area } from './axis';
import type { DrawProps } from './draw';

const LEGEND_HEIGHT = 22;

interface Box {
  from: number;
  to: number;
  value: any;
}

function boxes(line: Line, step: number, merge: boolean, end: number): Box[] {
  const found: Box[] = [];
  line.times.forEach((time, index) => {
    const value = line.values[index];
    const last = found[found.length - 1];
    if (value == null) {
      return;
    }
    if (merge && last && last.value === value && time - last.to < step * 1.5) {
      last.to = Math.min(end, time + step);
    } else {
      found.push({ from: merge ? time : time - step / 2, to: merge ? Math.min(end, time + step) : time + step / 2, value });
    }
  });
  return found;
}

/** Texts of value mappings, else the bounds of the thresholds; nothing for a continuous colour. */
function legend(rows: Line[], theme: GrafanaTheme2): Array<[string, string]> {
  const found = new Map<string, string>();
  for (const { field, values } of rows) {
    if (field.config.mappings?.length) {
      values.forEach((value) => value != null && found.set(text(field, value), field.display?.(value).color ?? ''));
    } else if (field.config.color?.mode === 'thresholds') {
      (field.config.thresholds?.steps ?? []).forEach((step, index, steps) => {
        const bound = (value: number) => (field.display ? formattedValueToString(field.display(value)) : String(value));
        found.set(index ? `${bound(step.value)}+` : steps[1] ? `< ${bound(steps[1].value)}` : 'any', theme.visualization.getColorByName(step.color));
      });
    }
  }
  return [...found];
}

const text = (field: Line['field'], value: any) => (field.display ? formattedValueToString(field.display(value)) : String(value));

function colourOf(field: Line['field'], value: any, theme: GrafanaTheme2): string {
  const shown = field.display?.(value).color;
  const steps = field.config.thresholds?.steps;
  return shown ?? theme.visualization.getColorByName(steps?.length ? getActiveThreshold(value, steps).color : 'gray');
}

export function States({ panel, data, range, theme, width, height }: DrawProps) {
  const options = panel.options ?? {};
  const merge = panel.type === 'state-timeline' && options.mergeValues !== false;
  const rows = lines(data.frames);
  const entries = options.legend?.showLegend === false ? [] : legend(rows, theme);
  const left = Math.min(width / 3, Math.max(...rows.map((row) => measureText(row.name, 12).width)) + 14);
  const area: Area = { left, top: 4, width: width - left - 8, height: height - AXIS_HEIGHT - (entries.length ? LEGEND_HEIGHT : 0) - 4 };
  const times = rows.flatMap((row) => row.times.slice(1).map((time, index) => time - row.times[index]));
  const step = rows[0].field.config.interval ?? Math.min(...times, 60000);
  const tall = area.height / rows.length;
  const inner = tall * (options.rowHeight ?? 0.9);
  const x = place(area, range);
  const top = (index: number) => area.top + index * tall + (tall - inner) / 2;
  const box = (row: Line, index: number) => ({ from, to, value }: Box, key: number) => {
    const [start, wide] = [Math.max(area.left, x(from)), Math.min(area.left + area.width, x(to)) - Math.max(area.left, x(from))];
    const label = text(row.field, value);
    const fits = options.showValue !== 'never' && inner > 14 && measureText(label, 12).width + 8 < wide;
    const fill = colourOf(row.field, value, theme);
    return wide > 0 && (
      <g key={key}>
        <rect x={start} y={top(index)} width={Math.max(1, wide - 1)} height={inner} fill={fill} fillOpacity={(row.field.config.custom?.fillOpacity ?? 70) / 100} />
        {fits && <text x={merge ? start + 4 : start + wide / 2} textAnchor={merge ? 'start' : 'middle'} y={top(index) + inner / 2 + 4} fontSize={12} fill={theme.colors.getContrastText(fill)}>{label}</text>}
      </g>
    );
  };
  return (
    <div style={{ width, height }}>
      <svg width={width} height={height - (entries.length ? LEGEND_HEIGHT : 0)}>
        {rows.map((row, index) => <g key={index}>{boxes(row, step, merge, range.to).map(box(row, index))}</g>)}
        <Names names={rows.map((row) => row.name)} area={area} theme={theme} middle={(index) => top(index) + inner / 2} />
        <TimeAxis area={area} range={range} theme={theme} />
      </svg>
      <div style={{ display: 'flex', gap: 14, fontSize: 12 }}>
        {entries.map(([name, colour]) => <span key={name}><i style={{ display: 'inline-block', width: 14, height: 4, background: colour, margin: '0 5px 3px 0' }} />{name}</span>)}
      </div>
    </div>
  );
}
