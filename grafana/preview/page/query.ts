// Everything that a panel shows: its queries are asked, transformed and given the panel's field settings.

import type { DataFrame, GrafanaTheme2 } from '@grafana/data';
import { configured, transformed } from './frames';
import { search } from './jaeger';
import type { Annotation, Data } from './panels/draw';
import { ask, exemplars, frames } from './prometheus';
import { steps, type Range } from './range';
import { interpolate, type Scope } from './variables';

export interface Settings {
  range: Range;
  scrape: number;
  theme: GrafanaTheme2;
}

/** A query that failed, as the command reports it. */
export interface Failure {
  panel: string;
  query: string;
  message: string;
}

const BUILTIN: Record<string, string> = { '-- Grafana --': 'grafana', '-- Mixed --': 'mixed', grafana: 'grafana' };

/** Which kind of data source a reference means: by its type, or by the kind of the variable that stands for it. */
function kind(reference: any, dashboard: any): string {
  const uid = typeof reference === 'string' ? reference : reference?.uid;
  const variable = (dashboard.templating?.list ?? []).find((each: any) => uid && [`$${each.name}`, `\${${each.name}}`].includes(uid));
  return variable?.query ?? reference?.type ?? BUILTIN[uid] ?? String(uid);
}

/** Adds the panel's steps to the variables. */
export function panelScope(panel: any, scope: Scope, settings: Settings, width: number) {
  const { interval, builtins } = steps(settings.range, panel.maxDataPoints ?? Math.max(50, Math.floor(width)), settings.scrape, panel.interval);
  const own: Scope = new Map(scope);
  Object.entries(builtins).forEach(([name, value]) => own.set(name, { values: [value], several: false }));
  return { own, interval };
}

/** The data of a panel. What fails goes to `failed` and the rest is still drawn. */
export async function load(panel: any, dashboard: any, own: Scope, interval: number, settings: Settings, failed: (failure: Failure) => void): Promise<Data> {
  const put = (text: string) => interpolate(text, own);
  const targets = (panel.targets ?? []).filter((target: any) => !target.hide);
  const data: Data = { frames: [], exemplars: [], annotations: [] };
  const found: DataFrame[] = [];
  for (const target of targets) {
    const source = kind(target.datasource ?? panel.datasource, dashboard);
    const text = source === 'prometheus' ? interpolate(target.expr ?? '', own, 'promql') : put(JSON.stringify(target));
    try {
      if (source === 'prometheus') {
        found.push(...(await frames(target, text, settings.range, interval, targets.length === 1)));
        data.exemplars.push(...(target.exemplar ? await exemplars(text, settings.range, interval) : []));
      } else if (source === 'jaeger') {
        found.push(...(await search(target, put, settings.range)));
      } else {
        throw new Error(`the preview has no data source of the kind "${source}"`);
      }
    } catch (error) {
      failed({ panel: put(panel.title ?? ''), query: text, message: (error as Error).message });
    }
  }
  data.frames = configured(panel, await transformed(panel, found, put), put, settings.theme);
  return data;
}

/** Times at which an annotation query of the dashboard starts to be above zero. */
export async function annotations(dashboard: any, scope: Scope, settings: Settings, failed: (failure: Failure) => void): Promise<Annotation[]> {
  const notes: Annotation[] = [];
  for (const each of dashboard.annotations?.list ?? []) {
    if (each.enable === false || kind(each.datasource, dashboard) !== 'prometheus') {
      continue;
    }
    const { own, interval } = panelScope({ interval: each.step }, scope, settings, 600);
    const query = interpolate(each.expr ?? each.target?.expr ?? '', own, 'promql');
    try {
      const answer = await ask('query_range', { query, start: String(settings.range.from / 1000), end: String(settings.range.to / 1000), step: String(interval) });
      for (const series of answer.result) {
        let last = -Infinity;
        for (const [time, value] of series.values) {
          if (Number(value) > 0 && time - last > interval * 1.5) {
            notes.push({ time: time * 1000, color: each.iconColor ?? 'blue', name: each.name });
          }
          last = Number(value) > 0 ? time : last;
        }
      }
    } catch (error) {
      failed({ panel: `annotation ${each.name}`, query, message: (error as Error).message });
    }
  }
  return notes;
}
