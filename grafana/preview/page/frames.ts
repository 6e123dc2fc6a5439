// From raw frames to frames that can be drawn: transformations, then the field settings and overrides of the panel.

import {
  applyFieldOverrides, cacheFieldDisplayNames, FieldColorModeId, FieldConfigOptionsRegistry, FieldType, getFieldDisplayName, identityOverrideProcessor,
  reduceField, standardTransformers, standardTransformersRegistry, toDataFrame, transformDataFrame,
  type DataFrame, type FieldConfigPropertyItem, type GrafanaTheme2,
} from '@grafana/data';
import { firstValueFrom } from 'rxjs';

// Some stand in the list twice, under an old and a new name.
const known = new Map(Object.values(standardTransformers).map((each: any) => [each.id, each]));
standardTransformersRegistry.setInit(() =>
  [...known.values()].map((each) => ({ id: each.id, name: each.name, transformation: async () => each, editor: () => null, imageDark: '', imageLight: '' }))
);

/** This one is not in the published packages: each series becomes a row, its points a small line in the column "Trend". */
function seriesToTrendRows(frames: DataFrame[], options: any): DataFrame[] {
  const byQuery = new Map<string, DataFrame[]>();
  const rest: DataFrame[] = [];
  for (const frame of frames) {
    const timed = frame.fields.some((field) => field.type === FieldType.time) && frame.fields.length === 2;
    timed ? byQuery.set(frame.refId ?? '', [...(byQuery.get(frame.refId ?? '') ?? []), frame]) : rest.push(frame);
  }
  const tables = [...byQuery].map(([refId, series]) => {
    const labels = [...new Set(series.flatMap((frame) => Object.keys(frame.fields[1].labels ?? {})))];
    const stat = options?.[refId]?.stat ?? 'lastNotNull';
    const trend = series.map((frame) => ({ ...frame, value: reduceField({ field: frame.fields[1], reducers: [stat] })[stat] }));
    return toDataFrame({
      refId,
      fields: [
        ...labels.map((name) => ({ name, type: FieldType.string, values: series.map((frame) => frame.fields[1].labels?.[name] ?? '') })),
        { name: byQuery.size > 1 ? `Trend #${refId}` : 'Trend', type: FieldType.frame, values: trend },
      ],
    });
  });
  return [...rest, ...tables];
}

/** Runs the panel's transformations in their order. */
export async function transformed(panel: any, frames: DataFrame[], put: (text: string) => string): Promise<DataFrame[]> {
  let result = frames;
  for (const step of (panel.transformations ?? []).filter((each: any) => !each.disabled)) {
    if (step.id === 'timeSeriesTable') {
      result = seriesToTrendRows(result, step.options);
    } else if (standardTransformersRegistry.getIfExists(step.id)) {
      result = await firstValueFrom(transformDataFrame([step], result, { interpolate: (text) => put(text) }));
    } else {
      throw new Error(`the preview does not know the transformation "${step.id}"`);
    }
  }
  return result;
}

function paths(settings: any, prefix = ''): string[] {
  return Object.entries(settings ?? {}).flatMap(([key, value]) => {
    const inner = prefix === '' && key === 'custom' ? paths(value, 'custom.') : [];
    return key === 'custom' && prefix === '' ? inner : [`${prefix}${key}`];
  });
}

/** Grafana's registry of field settings lives in its server's code; here every path that the panel names is a setting. */
function registry(fieldConfig: any): FieldConfigOptionsRegistry {
  const overridden = (fieldConfig.overrides ?? []).flatMap((rule: any) => rule.properties.map((each: any) => each.id));
  const ids = [...new Set<string>([...paths(fieldConfig.defaults), ...overridden])];
  return new FieldConfigOptionsRegistry(() =>
    ids.map((id) => {
      const isCustom = id.startsWith('custom.');
      const path = isCustom ? id.slice('custom.'.length) : id;
      return { id, path, isCustom, name: id, process: identityOverrideProcessor, shouldApply: () => true } as unknown as FieldConfigPropertyItem;
    })
  );
}

const BY_THRESHOLD = new Set(['stat', 'gauge', 'bargauge', 'table', 'state-timeline', 'status-history']);

/** The defaults that Grafana's panels start with, under what the panel says. */
export function settings(panel: any): any {
  const given = structuredClone(panel.fieldConfig ?? { defaults: {}, overrides: [] });
  given.defaults ??= {};
  given.overrides ??= [];
  const { defaults } = given;
  const steps = defaults.thresholds?.steps;
  if (steps?.length && steps[0].value == null) {
    steps[0].value = -Infinity;
  }
  for (const rule of given.overrides) {
    for (const property of rule.properties) {
      if (property.id === 'thresholds' && property.value?.steps?.[0]?.value == null) {
        property.value.steps[0].value = -Infinity;
      }
    }
  }
  defaults.thresholds ??= { mode: 'absolute', steps: [{ value: -Infinity, color: 'green' }] };
  defaults.color ??= { mode: BY_THRESHOLD.has(panel.type) ? FieldColorModeId.Thresholds : FieldColorModeId.PaletteClassic };
  if (panel.type === 'timeseries') {
    const line = { drawStyle: 'line', lineInterpolation: 'linear', lineWidth: 1, fillOpacity: 0, showPoints: 'auto', pointSize: 5, gradientMode: 'none' };
    defaults.custom = { ...line, axisPlacement: 'auto', barAlignment: 0, scaleDistribution: { type: 'linear' }, spanNulls: false, ...defaults.custom };
  }
  return given;
}

/** Units, names, thresholds, colours and overrides. */
export function configured(panel: any, frames: DataFrame[], put: (text: string) => string, theme: GrafanaTheme2): DataFrame[] {
  const fieldConfig = settings(panel);
  const fieldConfigRegistry = registry(fieldConfig);
  const result = applyFieldOverrides({ data: frames, fieldConfig, fieldConfigRegistry, replaceVariables: put, theme, timeZone: 'browser' });
  cacheFieldDisplayNames(result);
  return result;
}

/** One series as a row of a grid or an axis: its name and its points. */
export interface Line {
  name: string;
  times: number[];
  values: any[];
  field: DataFrame['fields'][number];
}

export function lines(frames: DataFrame[]): Line[] {
  return frames.flatMap((frame) => {
    const time = frame.fields.find((field) => field.type === FieldType.time);
    const others = frame.fields.filter((field) => field !== time && !field.config.custom?.hideFrom?.viz);
    return time ? others.map((field) => ({ name: getFieldDisplayName(field, frame, frames), times: time.values, values: field.values, field })) : [];
  });
}
