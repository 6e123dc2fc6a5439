// The time range of the page, and the steps that Grafana would choose for a panel of some width.

import { dateMath, dateTime, rangeUtil, type TimeRange } from '@grafana/data';

export interface Range {
  from: number;
  to: number;
  grafana: TimeRange;
  builtins: Record<string, string>;
}

export interface Steps {
  interval: number;
  builtins: Record<string, string>;
}

/** Reads texts such as `now-15m`, or what `new Date` reads. */
export function readRange(from: string, to: string): Range {
  const read = (text: string, roundUp: boolean) => (dateMath.parse(text, roundUp) ?? dateTime(text)).valueOf();
  const [start, end] = [read(from, false), read(to, true)];
  const seconds = Math.round((end - start) / 1000);
  return {
    from: start,
    to: end,
    grafana: { from: dateTime(start), to: dateTime(end), raw: { from, to } },
    builtins: {
      __from: String(start),
      __to: String(end),
      __range: `${seconds}s`,
      __range_s: String(seconds),
      __range_ms: String(end - start),
    },
  };
}

/** `scrape` is the data source's time interval in seconds: the rate interval is never below four of it. */
export function steps(range: Range, points: number, scrape: number, lowest?: string): Steps {
  const low = lowest ? lowest.replace(/^[<>]/, '') : `${scrape}s`;
  const interval = rangeUtil.calculateInterval(range.grafana, points, low).intervalMs / 1000;
  const rate = Math.max(interval + scrape, 4 * scrape);
  return {
    interval,
    builtins: { __interval: `${interval}s`, __interval_ms: String(interval * 1000), __rate_interval: `${rate}s` },
  };
}
