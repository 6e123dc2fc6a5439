// Trace searches, as Grafana's Jaeger data source sends them and makes a table of the answer.

import { FieldType, toDataFrame, type DataFrame } from '@grafana/data';
import type { Range } from './range';

/** Grafana writes tags as `key=value key="two words"`; Jaeger wants JSON. */
function tags(text: string): string {
  const pairs = [...text.matchAll(/([^\s=]+)=(?:"([^"]*)"|(\S*))/g)].map(([, key, quoted, plain]) => [key, quoted ?? plain]);
  return JSON.stringify(Object.fromEntries(pairs));
}

/** `put` substitutes variables. Other query types than a search are an error. */
export async function search(target: any, put: (text: string) => string, range: Range): Promise<DataFrame[]> {
  if (target.queryType !== 'search') {
    throw new Error(`the preview draws trace searches only, not "${target.queryType}"`);
  }
  const parameters = new URLSearchParams({ start: String(range.from * 1000), end: String(range.to * 1000), lookback: 'custom' });
  for (const name of ['service', 'operation', 'minDuration', 'maxDuration', 'limit', 'tags']) {
    const value = target[name] === undefined ? '' : put(String(target[name]));
    if (value && !(name === 'operation' && value === 'All')) {
      parameters.set(name, name === 'tags' ? tags(value) : value);
    }
  }
  const response = await fetch(`/jaeger/api/traces?${parameters}`);
  const text = await response.text();
  if (!response.ok) {
    throw new Error(`Jaeger: ${response.status} ${text.slice(0, 300)}`);
  }
  const rows = (JSON.parse(text).data ?? []).map(row).sort((a: any, b: any) => b.start - a.start);
  return [
    toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'traceID', type: FieldType.string, values: rows.map((each: any) => each.id), config: { displayNameFromDS: 'Trace ID', unit: 'string', links: [{ title: 'Trace', url: '#' }] } },
        { name: 'traceName', type: FieldType.string, values: rows.map((each: any) => each.name), config: { displayNameFromDS: 'Trace name' } },
        { name: 'startTime', type: FieldType.time, values: rows.map((each: any) => each.start), config: { displayNameFromDS: 'Start time' } },
        { name: 'duration', type: FieldType.number, values: rows.map((each: any) => each.duration), config: { displayNameFromDS: 'Duration', unit: 'µs' } },
      ],
    }),
  ];
}

function row(trace: any) {
  const ids = new Set(trace.spans.map((span: any) => span.spanID));
  const root = trace.spans.find((span: any) => !span.references?.some((each: any) => ids.has(each.spanID))) ?? trace.spans[0];
  const starts = trace.spans.map((span: any) => span.startTime);
  const ends = trace.spans.map((span: any) => span.startTime + span.duration);
  const start = Math.min(...starts);
  return {
    id: trace.traceID,
    name: `${trace.processes[root.processID]?.serviceName}: ${root.operationName}`,
    start: start / 1000,
    duration: Math.max(...ends) - start,
  };
}
