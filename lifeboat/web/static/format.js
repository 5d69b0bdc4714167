// Figures as text. Nothing is computed here but their form.

const WHOLE = new Intl.NumberFormat("en");

/** 1234 -> "1,234". */
export const count = (value) => WHOLE.format(value);

/** Seconds -> "850 ms", "3.4 s", "45 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function duration(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95 && !Number.isInteger(seconds)) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 120) return `${whole} s`;
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return `${minutes} min ${whole % 60} s`;
}

/** A rate per second; null, too few seen to tell -> "unknown". */
export const rate = (value) => (value === null ? "unknown" : `${value < 10 ? value.toFixed(2) : value.toFixed(1)}/s`);

/** A limit: null -> "no limit". */
export const limit = (value) => (value === null ? "no limit" : count(value));

/** Bytes -> "1.2 KiB". */
export function bytes(value) {
  if (value < 1024) return `${value} B`;
  let scaled = value;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    scaled /= 1024;
    if (scaled < 1024) return `${scaled.toFixed(1)} ${unit}`;
  }
  return `${(scaled / 1024).toFixed(1)} TiB`;
}

/** An ISO time -> local clock time. */
export const clock = (iso) => new Date(iso).toLocaleTimeString("en-GB");

/** A sum for display. */
export const sum = (values) => values.reduce((total, value) => total + value, 0);
