// Lines over time by Grafana's own component, with dots for exemplars and dashed lines for annotations drawn over it.

import { FieldType, type DataFrame, type GrafanaTheme2 } from '@grafana/data';
import { TimeSeries, type UPlotConfigBuilder } from '@grafana/ui';
import { useLayoutEffect, useMemo, useRef } from 'react';
import type { DrawProps } from './draw';

const DIAMOND = 5;

function marks(theme: GrafanaTheme2, props: DrawProps) {
  return (plot: any) => {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio;
    const scale = plot.series[1]?.scale;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const note of props.data.annotations) {
      const x = plot.valToPos(note.time, 'x', true);
      ctx.strokeStyle = theme.visualization.getColorByName(note.color);
      ctx.setLineDash([4 * ratio, 4 * ratio]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.fillStyle = theme.visualization.getColorByName('dark-blue');
    ctx.strokeStyle = theme.colors.background.primary;
    ctx.setLineDash([]);
    for (const { time, value } of scale ? props.data.exemplars : []) {
      // Above the axis Grafana puts them on its edge, so that they are seen at all.
      const y = Math.max(bbox.top + DIAMOND * ratio, plot.valToPos(value, scale, true));
      const x = plot.valToPos(time, 'x', true);
      const size = DIAMOND * ratio;
      const shape = new Path2D(`M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`);
      ctx.fill(shape);
      ctx.stroke(shape);
    }
    ctx.restore();
  };
}

function Marks({ builder, theme, props }: { builder: UPlotConfigBuilder; theme: GrafanaTheme2; props: DrawProps }) {
  const added = useRef<UPlotConfigBuilder>(undefined);
  useLayoutEffect(() => {
    if (added.current !== builder) {
      added.current = builder;
      builder.addHook('draw', marks(theme, props));
    }
  });
  return null;
}

/** A value that is no number is a gap: so does Grafana, and one of them would leave the whole plot without an axis. */
function drawable(frame: DataFrame): DataFrame {
  const finite = (value: any) => (Number.isFinite(value) ? value : null);
  const fields = frame.fields.map((field) => (field.type === FieldType.number ? { ...field, values: field.values.map(finite) } : field));
  return { ...frame, fields };
}

export function Timeseries(props: DrawProps) {
  const { panel, data, width, height, range, theme } = props;
  const legend = { showLegend: true, displayMode: 'list', placement: 'bottom', calcs: [], ...panel.options?.legend };
  const frames = useMemo(() => data.frames.map(drawable), [data.frames]);
  return (
    <TimeSeries frames={frames} timeRange={range.grafana} timeZone="browser" width={width} height={height} legend={legend} options={panel.options}>
      {(builder: UPlotConfigBuilder, _: DataFrame) => <Marks builder={builder} theme={theme} props={props} />}
    </TimeSeries>
  );
}
