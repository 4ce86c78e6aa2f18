// Faults of the boxes of a page, a sentence each; tests/helpers/boxes.py runs it in a browser.
() => {
  const faults = [];
  const wide = document.documentElement.clientWidth;
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX + getComputedStyle(element).overflowY);
  const hides = (element) => /hidden|clip/.test(getComputedStyle(element).overflowX);
  const name = (element) => {
    const classes = typeof element.className === "string" ? element.className : element.className.baseVal;
    return element.tagName.toLowerCase() + (element.id ? "#" + element.id : "") + (classes ? "." + classes.trim().split(/\s+/).join(".") : "");
  };
  const say = (text) => `"${text.trim().replace(/\s+/g, " ").slice(0, 40)}"`;
  if (document.documentElement.scrollWidth > wide) {
    faults.push(`the page is ${document.documentElement.scrollWidth} px wide`);
  }

  // Boxes of all lines of text, each with the parts of the page that cut it.
  const lines = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode, parent = text.parentElement;
    if (!text.data.trim() || parent.closest("script, style, noscript, option, datalist, caption, .skip, .tip, .modebar, .hoverlayer, [hidden]")) continue;
    if (!parent.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    let visible = { left: -Infinity, right: Infinity, top: -Infinity, bottom: Infinity }, scrolled = false, ellipsis = false;
    for (let at = parent; at && at !== document.body; at = at.parentElement) {
      const style = getComputedStyle(at), box = at.getBoundingClientRect();
      if (style.textOverflow === "ellipsis") ellipsis = true;
      if (style.position === "fixed") ellipsis = true;
      if (scrolls(at)) scrolled = true;
      if ((scrolls(at) || hides(at)) && !(at instanceof SVGElement && at.tagName !== "svg")) {
        visible = {
          left: Math.max(visible.left, box.left), right: Math.min(visible.right, box.right),
          top: Math.max(visible.top, box.top), bottom: Math.min(visible.bottom, box.bottom),
        };
      }
    }
    for (const box of range.getClientRects()) {
      if (box.width < 1 || box.height < 1) continue;
      const cut = box.left < visible.left - 1.5 || box.right > visible.right + 1.5 || box.top < visible.top - 3 || box.bottom > visible.bottom + 3;
      const off = !scrolled && (box.left < -1 || box.right > wide + 1);
      if ((cut && !scrolled && !ellipsis) || (off && !ellipsis)) {
        faults.push(`cut off: ${say(text.data)} in ${name(parent)} at ${Math.round(box.left)} to ${Math.round(box.right)} px`);
      }
      const seen = {
        left: Math.max(box.left, visible.left), right: Math.min(box.right, visible.right),
        top: Math.max(box.top, visible.top), bottom: Math.min(box.bottom, visible.bottom),
      };
      if (seen.right > seen.left && seen.bottom > seen.top) {
        let stuck = parent.closest("thead th, .answer, .bar");
        lines.push({ ...seen, text, parent, stuck });
      }
    }
  }
  lines.sort((a, b) => a.top - b.top);
  for (let i = 0; i < lines.length; i++) {
    for (let j = i + 1; j < lines.length && lines[j].top < lines[i].bottom - 3; j++) {
      const a = lines[i], b = lines[j];
      if (a.text === b.text || (a.stuck && a.stuck !== b.stuck) || (b.stuck && a.stuck !== b.stuck)) continue;
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 3) faults.push(`overlap: ${say(a.text.data)} and ${say(b.text.data)} in ${name(a.parent)}`);
    }
  }

  // Charts: the legend beside the marks, and something drawn in each.
  for (const chart of document.querySelectorAll(".js-plotly-plot")) {
    const marks = [...chart.querySelectorAll(".barlayer path, .scatterlayer .point, .scatterlayer .js-line")];
    if (!marks.some((mark) => { const box = mark.getBoundingClientRect(); return box.width > 1 || box.height > 1; })) faults.push(`nothing is drawn in ${name(chart)}`);
    const legend = chart.querySelector(".infolayer .legend .bg, .infolayer .legend");
    if (!legend) continue;
    const key = legend.getBoundingClientRect();
    const plot = chart.querySelector(".plot, .bglayer .bg, .cartesianlayer .gridlayer")?.getBoundingClientRect();
    for (const mark of marks) {
      const box = mark.getBoundingClientRect();
      const across = Math.min(key.right, box.right) - Math.max(key.left, box.left);
      const down = Math.min(key.bottom, box.bottom) - Math.max(key.top, box.top);
      if (across > 1 && down > 1) { faults.push(`the legend lies over marks in ${name(chart)}`); break; }
    }
  }

  // Whatever is drawn has room, and bars of a share that is not nothing are seen.
  for (const canvas of document.querySelectorAll("canvas")) {
    const box = canvas.getBoundingClientRect(), room = canvas.parentElement.getBoundingClientRect();
    if (box.width > 0 && box.right > room.right + 2 && !canvas.closest(".scroll")) faults.push(`cut off: a canvas in ${name(canvas.parentElement)}, ${Math.round(box.right - room.right)} px`);
  }
  for (const track of document.querySelectorAll(".utility-track, .beside-row i")) {
    const box = track.getBoundingClientRect();
    if (box.height > 0 && box.width < 60) faults.push(`a bar has ${Math.round(box.width)} px in ${name(track.parentElement)}`);
  }
  return [...new Set(faults)];
}
