// Single values: stat, gauge and bar gauge, by Grafana's own components.

import { getDisplayValueAlignmentFactors, getFieldDisplayValues, VizOrientation, type FieldDisplay } from '@grafana/data';
import { BarGauge, BigValue, VizRepeater, type VizRepeaterRenderValueProps } from '@grafana/ui';
import type { ReactElement } from 'react';
import { settings } from '../frames';
import type { DrawProps } from './draw';

type One = VizRepeaterRenderValueProps<FieldDisplay, any>;

function Repeated(props: DrawProps & { draw: (one: One) => ReactElement; sparkline?: boolean; grid?: boolean }) {
  const { panel, data, put, theme, width, height, draw, sparkline, grid } = props;
  const reduceOptions = { calcs: ['lastNotNull'], ...panel.options?.reduceOptions };
  const getValues = () =>
    getFieldDisplayValues({ data: data.frames, reduceOptions, fieldConfig: settings(panel), replaceVariables: put, theme, sparkline, timeZone: 'browser' });
  return (
    <VizRepeater
      source={data} getValues={getValues} getAlignmentFactors={getDisplayValueAlignmentFactors} renderValue={draw} width={width} height={height}
      renderCounter={0} autoGrid={grid} orientation={panel.options?.orientation ?? VizOrientation.Auto} itemSpacing={8}
    />
  );
}

export function Stat(props: DrawProps) {
  const options = props.panel.options ?? {};
  const graphMode = options.graphMode ?? 'area';
  const draw = ({ value, width, height, alignmentFactors, count }: One) => (
    <BigValue
      value={value.display} sparkline={graphMode === 'none' ? undefined : value.sparkline} width={width} height={height} count={count} theme={props.theme}
      colorMode={options.colorMode ?? 'value'} graphMode={graphMode} justifyMode={options.justifyMode ?? 'auto'} textMode={options.textMode ?? 'auto'}
      alignmentFactors={alignmentFactors} text={options.text} disableWideLayout={options.wideLayout === false}
    />
  );
  return <Repeated {...props} draw={draw} sparkline={graphMode !== 'none'} grid />;
}

/** The round gauge is drawn as a bar: its component is not published. */
export function Bars(props: DrawProps) {
  const options = props.panel.options ?? {};
  const draw = ({ value, width, height, orientation, alignmentFactors, count }: One) => (
    <BarGauge
      value={value.display} field={value.field} width={width} height={height} orientation={orientation} theme={props.theme} alignmentFactors={count > 1 ? alignmentFactors : undefined}
      display={value.view?.getFieldDisplayProcessor(value.colIndex as number)} displayMode={options.displayMode ?? 'gradient'}
      showUnfilled={options.showUnfilled ?? true} valueDisplayMode={options.valueMode} namePlacement={options.namePlacement} text={options.text} itemSpacing={8}
    />
  );
  return <Repeated {...props} draw={draw} />;
}
