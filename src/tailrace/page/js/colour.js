// How a token is coloured: by a number of its record, in seven steps. Classes say it, so that no style is inline.

const place = (record) => record.ids.indexOf(record.token_id);

/** The model's own probability of the token that came. */
export const modelProbability = (record) => record.model.probabilities[place(record)] ?? null;
/** What the token was drawn with: after all edits and refinements; null where it could not be drawn. */
export const drawProbability = (record) => record.draw.probabilities[place(record)] ?? null;
/** Surprise: −ln of the model's own probability, nats. */
export const surprise = (record) => {
  const p = modelProbability(record);
  return p === null || p <= 0 ? Infinity : -Math.log(p);
};

/** title; value(record); the bounds between the seven steps, and what the legend calls the ends. */
export const SCHEMES = {
  surprise: {
    title: "Surprise",
    unit: "nats",
    value: surprise,
    bounds: [0.2, 0.7, 1.5, 3, 5, 7.5],
    ends: ["expected", "surprising"],
  },
  probability: {
    title: "Probability",
    unit: "",
    value: (record) => 1 - (drawProbability(record) ?? 0),
    bounds: [0.1, 0.3, 0.5, 0.75, 0.9, 0.98],
    ends: ["certain", "unlikely"],
    shown: ["90 %", "70 %", "50 %", "25 %", "10 %", "2 %"],
  },
  entropy: {
    title: "Entropy",
    unit: "nats",
    value: (record) => record.model.entropy,
    bounds: [0.1, 0.5, 1, 1.5, 2.5, 4],
    ends: ["one choice", "many choices"],
  },
};

/** The step of a record, 0 to 6. */
export function level(scheme, record) {
  const { value, bounds } = SCHEMES[scheme];
  const number = value(record);
  let step = 0;
  while (step < bounds.length && number >= bounds[step]) step++;
  return step;
}

/** What an origin is called, and the sentence that explains it. */
export const ORIGINS = {
  drawn: ["drawn", "Drawn from what could be drawn."],
  greedy: ["greedy", "The largest logit: nothing was drawn."],
  forced: ["forced", "Nothing else was allowed to come here, or the request itself began the answer with it."],
  accepted: ["guessed", "A drafter guessed it, and the rule of verification took it."],
  replaced: ["replaced", "A drafter guessed another token, which was refused; this one came in its place."],
};
