// Questions to Prometheus, and the data frames that Grafana's data source makes of the answers.

import { FieldType, toDataFrame, type DataFrame } from '@grafana/data';
import type { Range } from './range';

export interface Exemplar {
  time: number;
  value: number;
}

/** One question; an error of Prometheus is raised with its own words. */
export async function ask(path: string, parameters: Record<string, string>, method: 'GET' | 'POST' = 'POST'): Promise<any> {
  const form = new URLSearchParams(parameters);
  const url = `/prom/api/v1/${path}`;
  const response = method === 'GET' ? await fetch(`${url}?${form}`) : await fetch(url, { method, body: form });
  const text = await response.text();
  let answer: any;
  try {
    answer = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || `Prometheus: ${response.status} ${response.statusText}`);
  }
  if (answer.status !== 'success') {
    throw new Error(answer.error ?? text);
  }
  return answer.data;
}

const number = (text: string) => (text.endsWith('Inf') ? (text[0] === '-' ? -Infinity : Infinity) : parseFloat(text));

function fullName(labels: Record<string, string>): string {
  const { __name__ = '', ...rest } = labels;
  const inside = Object.keys(rest).sort().map((key) => `${key}="${rest[key]}"`);
  return inside.length || !__name__ ? `${__name__}{${inside.join(', ')}}` : __name__;
}

function seriesName(target: any, labels: Record<string, string>): string | undefined {
  if (target.legendFormat === '__auto') {
    return Object.keys(labels).length ? undefined : target.expr;
  }
  // A label that a series lacks is nothing: so does Grafana's server, other than the function in its packages.
  const legend = (format: string) => format.replace(/\{\{\s*(.+?)\s*\}\}/g, (_, label) => labels[label] ?? '');
  return target.legendFormat ? legend(target.legendFormat) : fullName(labels);
}

type Points = Array<[number, string]>;
interface Series {
  metric: Record<string, string>;
  points: Points;
}

function seriesFrame(target: any, series: Series, step: number): DataFrame {
  const displayNameFromDS = seriesName(target, series.metric);
  return toDataFrame({
    refId: target.refId,
    name: displayNameFromDS,
    fields: [
      { name: 'Time', type: FieldType.time, values: series.points.map(([time]) => time * 1000), config: { interval: step * 1000 } },
      { name: 'Value', type: FieldType.number, values: series.points.map(([, value]) => number(value)), labels: series.metric, config: { displayNameFromDS } },
    ],
  });
}

/** One row for each point; each label is a column. With several queries in a panel the value is named after its query. */
function tableFrame(target: any, all: Series[], alone: boolean): DataFrame {
  const labels = [...new Set(all.flatMap((series) => Object.keys(series.metric)))].sort();
  const rows = all.flatMap((series) => series.points.map((point) => ({ series, point })));
  return toDataFrame({
    refId: target.refId,
    fields: [
      { name: 'Time', type: FieldType.time, values: rows.map(({ point }) => point[0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: rows.map(({ series }) => series.metric[label] ?? '') })),
      { name: alone ? 'Value' : `Value #${target.refId}`, type: FieldType.number, values: rows.map(({ point }) => number(point[1])) },
    ],
  });
}

/** Buckets of a histogram hold all below their bound; a heat map wants those between two bounds. */
function heatmapFrames(target: any, all: Series[], step: number): DataFrame[] {
  const bound = (series: Series) => number(series.metric.le ?? 'NaN');
  if (!all.every((series) => 'le' in series.metric)) {
    return all.map((series) => seriesFrame(target, series, step));
  }
  const ordered = [...all].sort((a, b) => bound(a) - bound(b));
  return ordered.map((series, index) => {
    const below = new Map(index ? ordered[index - 1].points : []);
    const points: Points = series.points.map(([time, value]) => [time, String(Math.max(0, number(value) - number(below.get(time) ?? '0')))]);
    return seriesFrame(target, { metric: series.metric, points }, step);
  });
}

async function instant(target: any, expr: string, range: Range): Promise<Series[]> {
  const answer = await ask('query', { query: expr, time: String(range.to / 1000) });
  if (answer.resultType === 'scalar') {
    return [{ metric: {}, points: [answer.result] }];
  }
  return answer.result.map((series: any) => ({ metric: series.metric, points: [series.value] }));
}

async function overTime(expr: string, range: Range, step: number): Promise<Series[]> {
  const aligned = (time: number) => String(Math.floor(time / 1000 / step) * step);
  const answer = await ask('query_range', { query: expr, start: aligned(range.from), end: aligned(range.to), step: String(step) });
  return answer.result.map((series: any) => ({ metric: series.metric, points: series.values }));
}

/** The frames of one query of a panel, in the shape that its format asks for. */
export async function frames(target: any, expr: string, range: Range, step: number, alone: boolean): Promise<DataFrame[]> {
  const found: DataFrame[] = [];
  const wantsRange = target.range ?? !target.instant;
  for (const series of [wantsRange && (await overTime(expr, range, step)), target.instant && (await instant(target, expr, range))]) {
    if (!series || !series.length) {
      continue;
    }
    if (target.format === 'table') {
      found.push(tableFrame(target, series, alone));
    } else if (target.format === 'heatmap') {
      found.push(...heatmapFrames(target, series, step));
    } else {
      found.push(...series.map((each: any) => seriesFrame(target, each, step)));
    }
  }
  return found;
}

/** Of each step the largest, and those that are two standard deviations away from the one before: what Grafana shows, too. */
function sampled(all: Exemplar[], step: number): Exemplar[] {
  const mean = all.reduce((sum, { value }) => sum + value, 0) / all.length;
  const deviation = Math.sqrt(all.reduce((sum, { value }) => sum + (value - mean) ** 2, 0) / all.length);
  const kept = new Map<number, Exemplar[]>();
  for (const each of [...all].sort((a, b) => b.value - a.value)) {
    const slot = Math.floor(each.time / 1000 / step);
    const before = kept.get(slot) ?? [];
    if (!before.length || before[before.length - 1].value - each.value > 2 * deviation) {
      kept.set(slot, [...before, each]);
    }
  }
  return [...kept.values()].flat();
}

/** Exemplars of the series in a query, thinned out. */
export async function exemplars(expr: string, range: Range, step: number): Promise<Exemplar[]> {
  const data: any[] = await ask('query_exemplars', { query: expr, start: String(range.from / 1000), end: String(range.to / 1000) });
  return sampled(data.flatMap((series) => series.exemplars.map((each: any): Exemplar => ({ time: each.timestamp * 1000, value: number(each.value) }))), step);
}
