// The time axis, the colour bar and the plot area that the panels of our own drawing share.

import { dateTimeFormat, systemDateFormats, type GrafanaTheme2 } from '@grafana/data';
import { measureText } from '@grafana/ui';
import type { Range } from '../range';

export const AXIS_HEIGHT = 22;
const LABEL_WIDTH = 90;
const ROUND = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400].map((seconds) => seconds * 1000);

export interface Area {
  left: number;
  top: number;
  width: number;
  height: number;
}

/** Pixels of a time. */
export const place = (area: Area, range: Range) => (time: number) => area.left + ((time - range.from) / (range.to - range.from)) * area.width;

export function TimeAxis({ area, range, theme }: { area: Area; range: Range; theme: GrafanaTheme2 }) {
  const wanted = (range.to - range.from) / Math.max(1, area.width / LABEL_WIDTH);
  const every = ROUND.find((step) => step >= wanted) ?? ROUND[ROUND.length - 1];
  const offset = new Date(range.from).getTimezoneOffset() * 60000;
  const first = Math.ceil((range.from - offset) / every) * every + offset;
  const times = Array.from({ length: Math.floor((range.to - first) / every) + 1 }, (_, index) => first + index * every);
  const format = every < 60000 ? systemDateFormats.interval.second : every < 86400000 ? systemDateFormats.interval.minute : systemDateFormats.interval.day;
  const x = place(area, range);
  return (
    <g fill={theme.colors.text.primary} fontSize={12} textAnchor="middle">
      {times.map((time) => (
        <text key={time} x={x(time)} y={area.top + area.height + 16}>{dateTimeFormat(time, { format })}</text>
      ))}
    </g>
  );
}

/** A bar of colours from the lowest to the highest value, with both written. */
export function ColourBar({ colours, low, high, width, theme }: { colours: string[]; low: string; high: string; width: number; theme: GrafanaTheme2 }) {
  return (
    <div style={{ display: 'flex', gap: 6, alignItems: 'center', justifyContent: 'flex-end', width, fontSize: 12, color: theme.colors.text.secondary }}>
      <span>{low}</span>
      <div style={{ height: 8, width: 160, background: `linear-gradient(90deg, ${colours.join(',')})` }} />
      <span>{high}</span>
    </div>
  );
}

function cut(name: string, width: number): string {
  let shown = name;
  while (shown.length > 1 && measureText(shown, 12).width > width) {
    shown = `${shown.slice(0, -2)}…`;
  }
  return shown;
}

/** Names at the left edge, cut to what fits. */
export function Names({ names, area, theme, middle }: { names: string[]; area: Area; theme: GrafanaTheme2; middle: (index: number) => number }) {
  const skip = Math.ceil(14 / (area.height / Math.max(1, names.length)));
  return (
    <g fill={theme.colors.text.primary} fontSize={12} textAnchor="end">
      {names.map((name, index) => (index % skip ? null : <text key={index} x={area.left - 6} y={middle(index) + 4}>{cut(name, area.left - 8)}</text>))}
    </g>
  );
}
