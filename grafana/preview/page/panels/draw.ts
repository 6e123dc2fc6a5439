// What every panel is given.

import type { DataFrame, GrafanaTheme2 } from '@grafana/data';
import type { Exemplar } from '../prometheus';
import type { Range } from '../range';

export interface Annotation {
  time: number;
  color: string;
  name: string;
}

export interface Data {
  frames: DataFrame[];
  exemplars: Exemplar[];
  annotations: Annotation[];
}

export interface DrawProps {
  panel: any;
  data: Data;
  put: (text: string) => string;
  range: Range;
  theme: GrafanaTheme2;
  width: number;
  height: number;
}
