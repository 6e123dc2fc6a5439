// A heat map: time to the right, buckets or names upwards, the value as colour.

import { formattedValueToString, getValueFormat } from '@grafana/data';
import { measureText } from '@grafana/ui';
import * as schemes from 'd3-scale-chromatic';
import { lines, type Line } from '../frames';
import { AXIS_HEIGHT, ColourBar, Names, place, TimeAxis, type Area } from './axis';
import type { DrawProps } from './draw';

const BAR_HEIGHT = 18;
const MANY_HUES = new Set(['Spectral', 'RdYlGn', 'RdYlBu', 'RdBu', 'RdGy', 'Turbo', 'Cividis', 'Viridis', 'Magma', 'Inferno', 'Plasma']);

function palette(color: any, dark: boolean): (share: number) => string {
  const scheme = (schemes as any)[`interpolate${color.scheme ?? 'Oranges'}`] ?? schemes.interpolateOranges;
  const steps = color.steps ?? 64;
  // A scheme of one hue goes from the page's own lightness to the other end: on a dark page it is turned round.
  const flip = Boolean(color.reverse) !== (dark && !MANY_HUES.has(color.scheme));
  return (share) => {
    const step = Math.min(steps - 1, Math.floor(share * steps)) / Math.max(1, steps - 1);
    return scheme(flip ? 1 - step : step);
  };
}

const bounded = (name: string) => name !== '' && !Number.isNaN(Number(name.replace('+Inf', '1')));

/** Where a value lies between the bounds of the rows, as a number of rows from below. */
function level(value: number, bounds: number[]): number {
  const above = bounds.findIndex((bound) => value <= bound);
  const low = above > 0 ? bounds[above - 1] : 0;
  const high = bounds[above];
  return above + (Number.isFinite(high) ? (value - low) / (high - low) : 0.5);
}

export function Heatmap({ panel, data, range, theme, width, height }: DrawProps) {
  const options = panel.options ?? {};
  const rows: Line[] = lines(data.frames);
  const buckets = rows.every((row) => bounded(row.name));
  const format = getValueFormat(options.yAxis?.unit ?? panel.fieldConfig?.defaults?.unit ?? 'short');
  const write = (name: string) => (!buckets ? name : name.includes('Inf') ? name : formattedValueToString(format(Number(name), options.yAxis?.decimals)));
  const names = rows.map((row) => write(row.name));
  const left = Math.min(width / 3, Math.max(...names.map((name) => measureText(name, 12).width)) + 12);
  const bar = options.legend?.show === false ? 0 : BAR_HEIGHT;
  const area: Area = { left, top: 10, width: width - left - 8, height: height - AXIS_HEIGHT - bar - 10 };
  const floor = options.filterValues?.le ?? 1e-9;
  const shown = rows.flatMap((row) => row.values).filter((value) => value > floor);
  const [low, high] = [options.color?.min ?? Math.min(...shown), options.color?.max ?? Math.max(...shown)];
  const exponent = options.color?.scale === 'linear' ? 1 : (options.color?.exponent ?? 0.5);
  const colour = palette(options.color ?? {}, theme.isDark);
  const shade = (value: number) => colour(high > low ? Math.max(0, Math.min(1, (value - low) / (high - low))) ** exponent : 1);
  const step = stepOf(rows);
  const tall = area.height / rows.length;
  const x = place(area, range);
  const y = (row: number) => area.top + area.height - row * tall;
  const cell = (value: number) => formattedValueToString(getValueFormat(options.cellValues?.unit ?? 'short')(value, options.cellValues?.decimals));
  const bounds = buckets ? rows.map((row) => (row.name.includes('Inf') ? Infinity : Number(row.name))) : [];
  return (
    <div style={{ width, height }}>
      <svg width={width} height={height - bar}>
        <clipPath id={`clip-${panel.id}`}><rect x={area.left} y={area.top} width={area.width} height={area.height} /></clipPath>
        <g clipPath={`url(#clip-${panel.id})`} shapeRendering="crispEdges">
          {rows.map((row, index) =>
            row.values.map((value, point) => value > floor && (
              <rect key={`${index}-${point}`} x={x(row.times[point] - step)} y={y(index + 1)} width={x(step) - x(0) - 1} height={Math.max(1, tall - 1)} fill={shade(value)} />
            ))
          )}
        </g>
        <g clipPath={`url(#clip-${panel.id})`} fill={theme.visualization.getColorByName('dark-blue')} stroke={theme.colors.background.primary}>
          {bounds.length > 0 && data.exemplars.map(({ time, value }, index) => (
            <path key={index} d={`M${x(time)} ${y(level(value, bounds)) - 5}l5 5l-5 5l-5 -5z`} />
          ))}
        </g>
        <Names names={names} area={area} theme={theme} middle={(index) => (buckets ? y(index + 1) : y(index + 0.5))} />
        <TimeAxis area={area} range={range} theme={theme} />
      </svg>
      {bar > 0 && <ColourBar colours={Array.from({ length: 32 }, (_, n) => colour(n / 31))} low={cell(low)} high={cell(high)} width={width - 8} theme={theme} />}
    </div>
  );
}

function stepOf(rows: Line[]): number {
  const times = [...new Set(rows.flatMap((row) => row.times))].sort((a, b) => a - b);
  return Math.min(...times.slice(1).map((time, index) => time - times[index]), 3600000);
}
