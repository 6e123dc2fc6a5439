// Opens the page in a headless browser, waits until everything is drawn, and writes the pictures.
// In: one JSON object on standard input. Out: one JSON object, the page's report, on standard output.

import { readFileSync } from 'node:fs';
import puppeteer from 'puppeteer-core';

const { browser: executablePath, url, width, scale, timeout, picture, rowPictures, crop } = JSON.parse(readFileSync(0, 'utf8'));
const FIRST_HEIGHT = 1000;

const browser = await puppeteer.launch({ executablePath, headless: true, args: ['--no-sandbox', '--disable-gpu', '--hide-scrollbars'] });
try {
  const page = await browser.newPage();
  const complaints = [];
  page.on('pageerror', (error) => complaints.push(String(error)));
  await page.setViewport({ width, height: FIRST_HEIGHT, deviceScaleFactor: scale });
  await page.goto(url, { timeout });
  await page.waitForFunction('window.preview && window.preview.done', { timeout, polling: 100 }).catch((error) => complaints.push(`not drawn in ${timeout} ms: ${error.message}`));
  const report = (await page.evaluate('window.preview')) ?? { failures: [], empty: [], rows: [], panels: 0, height: FIRST_HEIGHT };
  await page.setViewport({ width, height: Math.max(100, Math.ceil(report.height)), deviceScaleFactor: scale });
  const shoot = (path, y, height) => page.screenshot({ path, clip: { x: 0, y, width, height } });
  await shoot(picture, 0, Math.min(report.height, crop ?? Infinity));
  for (const [index, row] of rowPictures ? report.rows.entries() : []) {
    await shoot(picture.replace(/\.png$/, `-${index + 1}.png`), Math.max(0, row.y - 8), row.height + 16);
  }
  report.failures.push(...complaints.map((message) => ({ panel: 'the page', query: '', message })));
  process.stdout.write(JSON.stringify(report));
} finally {
  await browser.close();
}
