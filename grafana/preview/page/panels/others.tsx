// Panels without a query of their own: text, and the list of alerts that Prometheus evaluates.

import { dateTimeFormatTimeAgo, renderTextPanelMarkdown, type GrafanaTheme2 } from '@grafana/data';
import { useEffect, useState } from 'react';
import { ask } from '../prometheus';
import type { DrawProps } from './draw';

export function Text({ panel, put }: DrawProps) {
  const { content = '', mode = 'markdown' } = panel.options ?? {};
  const html = mode === 'html' ? put(content) : renderTextPanelMarkdown(put(content));
  return <div className="markdown-html" style={{ padding: 8, overflow: 'hidden' }} dangerouslySetInnerHTML={{ __html: html }} />;
}

const ORDER = ['firing', 'pending', 'inactive'];

function colour(state: string, theme: GrafanaTheme2): string {
  return { firing: theme.colors.error.main, pending: theme.colors.warning.main }[state] ?? theme.colors.success.main;
}

/** Only alert rules of the states that the panel asks for, the worst first. */
export function AlertList({ panel, theme, failed }: DrawProps & { failed: (error: Error) => void }) {
  const [rules, setRules] = useState<any[]>([]);
  useEffect(() => {
    ask('rules', { type: 'alert' }, 'GET').then((data) => setRules(data.groups.flatMap((group: any) => group.rules)), failed);
  }, []);
  const filter = panel.options?.stateFilter ?? { firing: true, pending: true };
  const wanted = rules.filter((rule) => filter[rule.state === 'inactive' ? 'normal' : rule.state]);
  const rows = wanted.sort((a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state));
  if (!rows.length) {
    return <div style={{ padding: 8, color: theme.colors.text.secondary }}>No alerts matching filters ({rules.length} rules)</div>;
  }
  return (
    <div style={{ overflow: 'hidden' }}>
      {rows.map((rule) => (
        <div key={rule.name} style={{ padding: '4px 8px', borderLeft: `4px solid ${colour(rule.state, theme)}`, marginBottom: 4, background: theme.colors.background.secondary }}>
          <b>{rule.name}</b> <span style={{ color: colour(rule.state, theme) }}>{rule.state}</span>
          {rule.alerts?.[0] && <span style={{ color: theme.colors.text.secondary }}> {rule.alerts.length}x, since {dateTimeFormatTimeAgo(rule.alerts[0].activeAt)}</span>}
        </div>
      ))}
    </div>
  );
}
