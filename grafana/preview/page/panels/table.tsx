// Tables by Grafana's own component. Links are drawn as links and lead nowhere.

import { TableNG } from '@grafana/ui/unstable';
import { settings } from '../frames';
import type { DrawProps } from './draw';

export function Table({ panel, data, width, height, range }: DrawProps) {
  const options = panel.options ?? {};
  const frame = data.frames[options.frameIndex ?? 0] ?? data.frames[0];
  const others = data.frames.length - 1;
  const note = others > 0 ? 22 : 0;
  return (
    <>
      <TableNG
        data={frame} width={width} height={height - note} noHeader={options.showHeader === false} sortBy={options.sortBy} cellHeight={options.cellHeight}
        timeRange={range.grafana} fieldConfig={settings(panel)} getActions={() => []}
      />
      {others > 0 && <div style={{ opacity: 0.7, padding: 2 }}>this is one table of {others + 1}: Grafana shows the others in a drop-down list</div>}
    </>
  );
}
