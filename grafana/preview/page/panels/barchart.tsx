// A bar chart: a group for each row of the table, a bar for each of its numbers.

import { FieldType, formattedValueToString, getFieldDisplayName, getFieldSeriesColor } from '@grafana/data';
import { measureText } from '@grafana/ui';
import type { DrawProps } from './draw';

const SIDE = 8;

export function BarChart({ panel, data, theme, width, height }: DrawProps) {
  const options = panel.options ?? {};
  const frame = data.frames[0];
  const x = frame.fields.find((field) => getFieldDisplayName(field, frame) === options.xField) ?? frame.fields.find((field) => field.type === FieldType.string) ?? frame.fields[0];
  const bars = frame.fields.filter((field) => field.type === FieldType.number && field !== x && !field.config.custom?.hideFrom?.viz);
  const names = Array.from({ length: frame.length }, (_, row) => (x.display ? formattedValueToString(x.display(x.values[row])) : String(x.values[row])));
  const highest = Math.max(...bars.flatMap((field) => [field.config.max ?? 0, ...field.values.filter(Number.isFinite)]), 1e-12);
  const lying = options.orientation === 'horizontal';
  const left = lying ? Math.min(width / 3, Math.max(...names.map((name) => measureText(name, 12).width)) + 14) : SIDE;
  const along = lying ? height - 2 * SIDE : width - left - SIDE;
  const room = lying ? width - left - 70 : height - 46;
  const group = along / Math.max(1, frame.length);
  const thick = (group * (options.groupWidth ?? 0.7)) / Math.max(1, bars.length);
  const bar = (field: (typeof bars)[number], index: number, row: number) => {
    const value = field.values[row];
    const size = Math.max(0, (value / highest) * room) || 0;
    const start = row * group + (group - thick * bars.length) / 2 + index * thick + (lying ? SIDE : left);
    const shown = field.display?.(value);
    const fill = (field.config.color?.mode === 'thresholds' ? shown?.color : getFieldSeriesColor(field, theme).color) ?? theme.colors.primary.main;
    const label = shown ? formattedValueToString(shown) : String(value);
    return lying ? (
      <g key={`${row}-${index}`}>
        <rect x={left} y={start} width={size} height={thick} fill={fill} fillOpacity={0.8} />
        <text x={left + size + 4} y={start + thick / 2 + 4} fontSize={12} fill={theme.colors.text.primary}>{label}</text>
      </g>
    ) : (
      <g key={`${row}-${index}`}>
        <rect x={start} y={20 + room - size} width={thick} height={size} fill={fill} fillOpacity={0.8} />
        <text x={start + thick / 2} y={16 + room - size} textAnchor="middle" fontSize={12} fill={theme.colors.text.primary}>{label}</text>
      </g>
    );
  };
  return (
    <svg width={width} height={height}>
      {names.map((name, row) => (
        <g key={row}>
          {bars.map((field, index) => bar(field, index, row))}
          <text fontSize={12} fill={theme.colors.text.primary} textAnchor={lying ? 'end' : 'middle'} x={lying ? left - 6 : left + (row + 0.5) * group} y={lying ? SIDE + (row + 0.5) * group + 4 : height - 8}>{name}</text>
        </g>
      ))}
    </svg>
  );
}
