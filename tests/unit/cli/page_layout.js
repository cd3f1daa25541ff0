// Looks at the pages in the frames of this document, and replaces the document by what is wrong with them. A frame has the width of a
// screen; `dark` in the address: the pages must be dark.
'use strict';

const problems = [];

/// The nearest ancestor that has a background.
function background(element) {
  for (let at = element; at; at = at.parentElement) {
    const colour = at.ownerDocument.defaultView.getComputedStyle(at).backgroundColor;
    if (!colour.endsWith(', 0)')) return colour;
  }
  return 'rgb(255, 255, 255)';
}

/// Relative luminance of WCAG 2.
function luminance(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(part => part / 255)
    .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

const overlap = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;

function look(frame) {
  const page = frame.contentDocument, view = frame.contentWindow;
  const found = text => problems.push(`${frame.getAttribute('src')} at ${frame.clientWidth} px: ${text}`);
  if (view.innerWidth !== frame.clientWidth || page.documentElement.scrollWidth > view.innerWidth) found('the page scrolls sideways');
  for (const element of page.body.querySelectorAll('*')) {
    if (element.scrollWidth > element.clientWidth + 1 && view.getComputedStyle(element).overflowX === 'auto')
      found(`scrolls sideways: ${element.className}, ${element.textContent.slice(0, 40)}`);
  }

  const texts = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (texts.nextNode()) {
    const text = texts.currentNode, parent = text.parentElement;
    const range = page.createRange();
    range.selectNodeContents(text);
    const rect = range.getBoundingClientRect();
    if (!text.data.trim() || !rect.width || parent.closest('script, style, title')) continue;
    ++seen;
    const box = parent.closest('td, th, svg, .card, #tools, header, main').getBoundingClientRect();
    if (rect.left < box.left - 1 || rect.right > box.right + 1) found(`text outside of its box: ${text.data}`);
    const style = view.getComputedStyle(parent);
    const ratio = contrast(parent.closest('svg') ? style.fill : style.color, background(parent));
    if (ratio < 4.5) found(`contrast ${ratio.toFixed(1)}: ${text.data}`);
  }
  if (seen < 100) found(`only ${seen} texts`);

  for (const svg of page.querySelectorAll('svg')) {
    const labels = [...svg.querySelectorAll('text')].map(label => [label.textContent, label.getBoundingClientRect()]);
    labels.forEach(([text, rect], i) => labels.slice(i + 1).forEach(([other, place]) => {
      if (overlap(rect, place)) found(`the labels ${text} and ${other} overlap`);
    }));
  }
  // Charts in parts that were opened are drawn when they are seen.
  const charts = [...page.querySelectorAll('.chart')].filter(chart => !chart.closest('details'));
  const empty = charts.filter(chart => ![...chart.querySelectorAll('.curve')].some(curve => curve.getBoundingClientRect().width > 100));
  if (charts.length < 3 || empty.length) found(`charts: ${charts.length}, without a curve: ${empty.map(chart => chart.textContent)}`);
  const dark = luminance(background(page.body)) < 0.2;
  if (dark !== (location.hash === '#dark')) found(`the page is ${dark ? 'dark' : 'light'}`);
}

onload = () => {
  const frames = [...document.querySelectorAll('iframe')];
  for (const frame of frames) for (const details of frame.contentDocument.querySelectorAll('details')) details.open = true;
  frames.forEach(look);
  document.body.replaceChildren(...problems.map(text => Object.assign(document.createElement('p'), {textContent: text})));
  document.body.append(`looked at ${frames.length} pages`);
};
