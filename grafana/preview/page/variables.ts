// Dashboard variables: their values, asked of Prometheus where they are queries, and their substitution in texts as Grafana does it.

import { ask } from './prometheus';
import type { Range } from './range';

/** Values of a variable. `all` is the text that stands for every value, where the dashboard gives one. */
export interface Value {
  values: string[];
  all?: string;
  several: boolean;
}
export type Scope = Map<string, Value>;
export interface Shown {
  label: string;
  text: string;
}

const ALL = '$__all';
const NAME = /\$(\w+)|\[\[(\w+?)\]\]|\$\{(\w+)(?::([\w:.-]+))?\}/g;

const literal = (text: string) => text.replace(/\\/g, '\\\\').replace(/'/g, "\\\\'");
const pattern = (text: string) => text.replace(/\\/g, '\\\\\\\\').replace(/[$^*{}[\]+?.()|]/g, '\\\\$&');
const alternatives = (values: string[]) => (values.length === 1 ? values[0] : `(${values.join('|')})`);

const FORMATS: Record<string, (values: string[]) => string> = {
  csv: (values) => values.join(','),
  glob: (values) => (values.length === 1 ? values[0] : `{${values.join(',')}}`),
  pipe: (values) => values.join('|'),
  queryparam: (values) => values.map(encodeURIComponent).join('&'),
  raw: (values) => values.join(','),
  regex: (values) => alternatives(values.map((value) => value.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&'))),
  text: (values) => values.join(' + '),
};

/** Puts values into a text. PromQL has its own way to write several values; all other texts have Grafana's `{a,b}`. */
export function interpolate(text: string, scope: Scope, language: 'promql' | 'other' = 'other'): string {
  return text.replace(NAME, (whole, plain, bracket, braced, format) => {
    const found = scope.get(plain ?? bracket ?? braced);
    if (!found) {
      return whole;
    }
    if (found.all !== undefined) {
      return found.all;
    }
    if (format) {
      return (FORMATS[format] ?? FORMATS.glob)(found.values);
    }
    if (language === 'other') {
      return FORMATS.glob(found.values);
    }
    return found.several ? alternatives(found.values.map(pattern)) : literal(found.values[0] ?? '');
  });
}

async function choices(query: string, range: Range): Promise<string[]> {
  const window = { start: String(range.from / 1000), end: String(range.to / 1000) };
  const labels = query.match(/^label_values\((?:(.+),\s*)?([\w.]+)\s*\)$/s);
  if (labels) {
    const match: Record<string, string> = labels[1] ? { 'match[]': labels[1].trim() } : {};
    return ask(`label/${labels[2]}/values`, { ...window, ...match }, 'GET');
  }
  const result = query.match(/^query_result\((.+)\)$/s);
  if (result) {
    const answer = await ask('query', { query: result[1], time: window.end });
    return answer.result.map((series: any) => {
      const { __name__ = '', ...rest } = series.metric;
      const inside = Object.entries(rest).map(([key, value]) => `${key}="${value}"`);
      return `${__name__}{${inside.join(',')}} ${series.value[1]} ${series.value[0] * 1000}`;
    });
  }
  throw new Error(`the preview does not know this variable query: ${query}`);
}

function filtered(values: string[], regex: string): string[] {
  const parts = regex.match(/^\/(.*)\/(\w*)$/s);
  const wanted = regex && new RegExp(parts ? parts[1] : regex, parts ? parts[2].replace('g', '') : '');
  const kept = wanted ? values.flatMap((value) => { const hit = value.match(wanted); return hit ? [hit[1] ?? hit[0]] : []; }) : values;
  return [...new Set(kept)];
}

function sorted(values: string[], order: number): string[] {
  if (!order) {
    return values;
  }
  const numeric = order === 3 || order === 4;
  const by = numeric ? (a: string, b: string) => parseFloat(a) - parseFloat(b) : (a: string, b: string) => a.localeCompare(b, 'en');
  const result = [...values].sort(by);
  return order % 2 ? result : result.reverse();
}

async function options(variable: any, scope: Scope, range: Range): Promise<string[]> {
  switch (variable.type) {
    case 'query': {
      const query = typeof variable.query === 'string' ? variable.query : (variable.query?.query ?? '');
      return sorted(filtered(await choices(interpolate(query, scope, 'promql'), range), variable.regex ?? ''), variable.sort ?? 0);
    }
    case 'custom':
    case 'interval':
      return String(variable.query ?? '').split(',').map((each) => each.trim().split(' : ').pop() as string);
    case 'datasource':
      return [variable.query];
    default:
      return [String(variable.query ?? '')];
  }
}

function chosen(variable: any, possible: string[], asked: string | undefined): string[] {
  if (asked !== undefined) {
    return asked.split(',');
  }
  const current = [variable.current?.value ?? []].flat().filter((value: string) => value !== '');
  if (variable.type !== 'datasource' && current.length && (current[0] === ALL || variable.type !== 'query' || possible.includes(current[0]))) {
    return current;
  }
  return variable.includeAll ? [ALL] : possible.slice(0, 1);
}

/** All variables in their order, so that one may use those before it. `asked` are the choices of the command line. */
export async function resolve(dashboard: any, range: Range, asked: Map<string, string>, failed: (name: string, error: Error) => void) {
  const scope: Scope = new Map(Object.entries(range.builtins).map(([name, value]) => [name, { values: [value], several: false }]));
  const bar: Shown[] = [];
  for (const variable of dashboard.templating?.list ?? []) {
    let possible: string[] = [];
    try {
      possible = await options(variable, scope, range);
    } catch (error) {
      failed(variable.name, error as Error);
    }
    const values = chosen(variable, possible, asked.get(variable.name));
    const everything = values[0] === ALL || values[0] === 'All';
    scope.set(variable.name, {
      values: everything ? possible : values,
      all: everything && variable.allValue ? variable.allValue : undefined,
      several: Boolean(variable.multi || variable.includeAll),
    });
    if ((variable.hide ?? 0) !== 2) {
      bar.push({ label: variable.label || variable.name, text: everything ? `All (${possible.length})` : values.join(' + ') || 'None' });
    }
  }
  return { scope, bar };
}
