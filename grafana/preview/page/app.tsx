// The page: reads a dashboard, resolves its variables, draws all panels, and says on `window.preview` what it found.

import { createTheme, renderMarkdown, ThemeContext, type GrafanaTheme2 } from '@grafana/data';
import { ErrorBoundary, GlobalStyles, PanelChrome } from '@grafana/ui';
import { useEffect, useState, type ReactNode } from 'react';
import { createRoot } from 'react-dom/client';
import { layout, type Placed } from './layout';
import { BarChart } from './panels/barchart';
import type { Annotation, Data, DrawProps } from './panels/draw';
import { Heatmap } from './panels/heatmap';
import { AlertList, Text } from './panels/others';
import { States } from './panels/states';
import { Table } from './panels/table';
import { Timeseries } from './panels/timeseries';
import { Bars, Stat } from './panels/values';
import { annotations, load, panelScope, type Failure, type Settings } from './query';
import { readRange } from './range';
import { interpolate, resolve, type Scope, type Shown } from './variables';

interface Report {
  title: string;
  height: number;
  panels: number;
  failures: Failure[];
  empty: string[];
  rows: Array<{ title: string; y: number; height: number }>;
  done: boolean;
}
declare global {
  interface Window {
    preview: Report;
  }
}
const report: Report = (window.preview = { title: '', height: 0, panels: 0, failures: [], empty: [], rows: [], done: false });
const MARGIN = 16;
const HEADER = 104;
const SETTLE_MS = 700;

const DRAWN: Record<string, (props: DrawProps) => ReactNode> = {
  timeseries: Timeseries, stat: Stat, gauge: Bars, bargauge: Bars, table: Table, heatmap: Heatmap,
  'state-timeline': States, 'status-history': States, barchart: BarChart, text: Text,
};
const WITHOUT_DATA = new Set(['text', 'alertlist']);
const OWN_EMPTY_TEXT = new Set(['stat', 'gauge', 'bargauge']);

let waiting = 0;

function finished() {
  waiting -= 1;
  if (!waiting) {
    document.fonts.ready.then(() => setTimeout(() => { report.done = true; }, SETTLE_MS));
  }
}

interface PanelProps {
  placed: Placed;
  dashboard: any;
  settings: Settings;
  notes: Annotation[];
}

/** A panel may have a time range of its own, counted from now. */
function ownTime(panel: any, settings: Settings): Settings {
  return panel.timeFrom ? { ...settings, range: readRange(`now-${panel.timeFrom}`, 'now') } : settings;
}

function Panel({ placed, dashboard, settings: common, notes }: PanelProps) {
  const { panel, scope, width, height } = placed;
  const settings = ownTime(panel, common);
  const { own, interval } = panelScope(panel, scope, settings, width);
  const put = (text: string) => interpolate(text, own);
  const [data, setData] = useState<Data>();
  const [errors, setErrors] = useState<string[]>([]);
  const failed = (failure: Failure) => {
    report.failures.push(failure);
    setErrors((before) => [...before, failure.message]);
  };
  useEffect(() => {
    const problem = (error: Error) => failed({ panel: put(panel.title ?? ''), query: '', message: error.message });
    load(panel, dashboard, own, interval, settings, failed)
      .then((found) => setData({ ...found, annotations: notes }), problem)
      .finally(finished);
  }, []);
  return (
    <PanelChrome title={put(panel.title ?? '')} description={panel.description && renderMarkdown(put(panel.description))} width={width} height={height}
      padding={panel.type === 'table' ? 'none' : 'md'} displayMode={panel.transparent ? 'transparent' : 'default'} statusMessage={errors[0]}>
      {(innerWidth, innerHeight) => {
        const props = { panel, data: data as Data, put, range: settings.range, theme: settings.theme, width: innerWidth, height: innerHeight };
        return errors.length ? <Errors errors={errors} theme={settings.theme} /> : data && <Content {...props} failed={failed} />;
      }}
    </PanelChrome>
  );
}

function Errors({ errors, theme }: { errors: string[]; theme: GrafanaTheme2 }) {
  return <div style={{ color: theme.colors.error.text, overflow: 'hidden', padding: 8 }}>{errors.map((each, index) => <p key={index}>{each}</p>)}</div>;
}

function Content(props: DrawProps & { failed: (failure: Failure) => void }) {
  const { panel, data, put, theme, failed } = props;
  const problem = (error: Error) => failed({ panel: put(panel.title ?? ''), query: '', message: error.message });
  const empty = !WITHOUT_DATA.has(panel.type) && !data.frames.some((frame) => frame.length);
  const Drawn = DRAWN[panel.type];
  useEffect(() => {
    if (empty) {
      report.empty.push(put(panel.title ?? ''));
    }
    if (!Drawn && panel.type !== 'alertlist') {
      problem(new Error(`the preview cannot draw panels of the type "${panel.type}"`));
    }
  }, []);
  if (panel.type === 'alertlist') {
    return <AlertList {...props} failed={problem} />;
  }
  if (empty && !OWN_EMPTY_TEXT.has(panel.type)) {
    const text = panel.fieldConfig?.defaults?.noValue ?? 'No data';
    return <div style={{ height: '100%', display: 'grid', placeItems: 'center', textAlign: 'center', color: theme.colors.text.secondary, fontSize: 16 }}>{text}</div>;
  }
  return Drawn ? <ErrorBoundary onError={problem}>{() => <Drawn {...props} />}</ErrorBoundary> : null;
}

function Bar({ bar, title, settings }: { bar: Shown[]; title: string; settings: Settings }) {
  const { theme, range } = settings;
  const field = { border: `1px solid ${theme.colors.border.medium}`, borderRadius: 2, padding: '5px 8px' };
  return (
    <div style={{ height: HEADER - MARGIN, paddingTop: 12 }}>
      <div style={{ display: 'flex', justifyContent: 'space-between', marginBottom: 10 }}>
        <span style={{ fontSize: 18 }}>{title}</span>
        <span style={{ ...field, padding: '2px 8px' }}>{`${range.grafana.raw.from} to ${range.grafana.raw.to}`}</span>
      </div>
      <div style={{ display: 'flex', gap: 8, whiteSpace: 'nowrap', fontSize: 12 }}>
        {bar.map(({ label, text }) => (
          <span key={label} style={{ display: 'flex' }}>
            <span style={{ ...field, background: theme.colors.background.secondary, borderRight: 'none' }}>{label}</span>
            <span style={{ ...field, background: theme.components.input.background, maxWidth: 220, overflow: 'hidden', textOverflow: 'ellipsis' }}>{text}</span>
          </span>
        ))}
      </div>
    </div>
  );
}

interface PageProps {
  items: Placed[];
  height: number;
  bar: Shown[];
  scope: Scope;
  dashboard: any;
  settings: Settings;
  notes: Annotation[];
}

function Page({ items, height, bar, dashboard, settings, notes }: PageProps) {
  const { theme } = settings;
  return (
    <ThemeContext.Provider value={theme}>
      <GlobalStyles />
      <div style={{ padding: `0 ${MARGIN}px`, background: theme.colors.background.canvas, color: theme.colors.text.primary, minHeight: '100vh' }}>
        <Bar bar={bar} title={dashboard.title} settings={settings} />
        <div style={{ position: 'relative', height }}>
          {items.map((placed) => (
            <div key={placed.key} style={{ position: 'absolute', left: placed.x, top: placed.y, width: placed.width, height: placed.height }}>
              {placed.kind === 'panel' ? <Panel placed={placed} dashboard={dashboard} settings={settings} notes={notes} /> : <Row placed={placed} />}
            </div>
          ))}
        </div>
      </div>
    </ThemeContext.Provider>
  );
}

function Row({ placed }: { placed: Placed }) {
  const title = interpolate(placed.panel.title ?? '', placed.scope);
  return <div style={{ fontSize: 16, fontWeight: 500, paddingTop: 4 }}>{`${placed.collapsed ? '›' : '⌄'} ${title}${placed.collapsed ? ` (${placed.panel.panels?.length ?? 0})` : ''}`}</div>;
}

function rowsOf(items: Placed[]): Report['rows'] {
  const found = new Map<string, { title: string; y: number; height: number }>();
  for (const { row, y, height } of items) {
    const known = found.get(row) ?? { title: row, y: y + HEADER - MARGIN, height: 0 };
    found.set(row, { ...known, height: Math.max(known.height, y + HEADER - MARGIN + height - known.y) });
  }
  return [...found.values()];
}

async function main() {
  const query = new URLSearchParams(location.search);
  const dashboard = await (await fetch('/dashboard.json')).json();
  const settings: Settings = {
    range: readRange(query.get('from') ?? 'now-15m', query.get('to') ?? 'now'),
    scrape: Number(query.get('interval') ?? 15),
    theme: createTheme({ colors: { mode: query.get('theme') === 'light' ? 'light' : 'dark' } }),
  };
  const asked = new Map([...query].filter(([name]) => name.startsWith('var-')).map(([name, value]) => [name.slice('var-'.length), value]));
  const failed = (failure: Failure) => report.failures.push(failure);
  const { scope, bar } = await resolve(dashboard, settings.range, asked, (name, error) => failed({ panel: `variable ${name}`, query: '', message: error.message }));
  const notes = await annotations(dashboard, scope, settings, failed);
  const { items, height } = layout(dashboard, scope, window.innerWidth - 2 * MARGIN, query.has('closed'));
  const panels = items.filter((each) => each.kind === 'panel').length;
  Object.assign(report, { title: dashboard.title, height: height + HEADER, panels, rows: rowsOf(items) });
  waiting = panels || 1;
  if (!panels) {
    finished();
  }
  createRoot(document.getElementById('root') as HTMLElement).render(<Page {...{ items, height, bar, scope, dashboard, settings, notes }} />);
}

main().catch((error) => {
  report.failures.push({ panel: 'the page', query: '', message: String(error?.stack ?? error) });
  report.done = true;
});
