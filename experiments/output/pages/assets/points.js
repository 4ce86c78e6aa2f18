// Points of a study as columns: where each value is on its axis, which points the filters leave.
"use strict";

// Prepare columns: `positions` are numbers on an axis (places of levels, logarithms, or values).
twofold.axes = (specs, points) => specs.map((spec) => {
  const column = points.columns[spec.name];
  const axis = { ...spec, column, unit: column.unit ?? "", rows: points.rows };
  axis.cell = (row) => twofold.cell(column, row);
  axis.say = (value) => (typeof value === "string" ? value : twofold.say(value, axis.unit));
  return column.text ? twofold.ordinal(axis, column.levels, column.codes) : twofold.numeric(axis);
});

twofold.ordinal = (axis, levels, codes) => {
  axis.levels = levels.map((one) => axis.say(one));
  axis.positions = Float64Array.from(codes);
  axis.constant = levels.length < 2;
  [axis.low, axis.high] = [0, Math.max(1, levels.length - 1)];
  axis.back = (position) => levels[Math.round(Math.min(levels.length - 1, Math.max(0, position)))];
  const short = (text) => (text.length > 18 ? `${text.slice(0, 17)}…` : text);
  axis.ticks = twofold.spread(levels.length, 9).map((place) => [place, short(axis.levels[place])]);
  return axis;
};

// So many whole numbers from 0, evenly, the ends among them.
twofold.spread = (count, most) => {
  const room = Math.min(count, most);
  return [...new Set(Array.from({ length: room }, (_, at) => Math.round((at * (count - 1)) / Math.max(1, room - 1))))];
};

const LEVELS = 64;  // a dimension of so many values is drawn with equal distances

twofold.numeric = (axis) => {
  const { values } = axis.column;
  const distinct = new Set();
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    if (value < least) least = value;
    if (value > most) most = value;
    if (distinct.size <= LEVELS) distinct.add(value);
  }
  if (axis.kind === "dimension" && distinct.size && distinct.size <= LEVELS) {
    const levels = [...distinct].sort((one, other) => one - other);
    const places = new Map(levels.map((value, place) => [value, place]));
    return twofold.ordinal(axis, levels, Float64Array.from(values, (value) => places.get(value) ?? NaN));
  }
  if (least > most) [least, most] = [0, 1];
  axis.log = least > 0 && most / least > 30;
  const there = axis.log ? Math.log10 : (value) => value;
  axis.back = axis.log ? (position) => 10 ** position : (position) => position;
  axis.positions = Float64Array.from(values, there);
  [axis.low, axis.high] = [there(least), there(most)];
  axis.constant = axis.low === axis.high;
  if (axis.constant) axis.high += Math.abs(axis.low) * 1e-9 || 1;
  axis.ticks = [0, 1, 2, 3, 4, 5].map((step) => {
    const at = axis.low + ((axis.high - axis.low) * step) / 5;
    return [at, twofold.say(axis.back(at), axis.unit, 3)];
  });
  return axis;
};

// Which points are left: of `filters` by axis a set of places, or a range of positions.
twofold.left = (axes, filters, allowed) => {
  const mask = Uint8Array.from(allowed);
  for (const [name, filter] of filters) {
    const { positions } = axes.find((one) => one.name === name);
    for (let row = 0; row < mask.length; row++) {
      if (!mask[row]) continue;
      const at = positions[row];
      mask[row] = filter.set ? filter.set.has(at) : at >= filter.low && at <= filter.high;
    }
  }
  return mask;
};
