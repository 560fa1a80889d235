// What a run and its records look like: predicates, against which a file is checked before the page shows it.
import { ORIGINS } from "./colour.js";

export const isText = (value) => typeof value === "string";
export const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isBoolean = (value) => typeof value === "boolean";
const isNumber = Number.isFinite; // 1e999 in a file is Infinity
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isByte = (value) => isCount(value) && value < 256;

const absentOr = (holds) => (value) => value === undefined || value === null || holds(value);
const nullOr = (holds) => (value) => value === null || holds(value);
const listOf = (holds) => (value) => Array.isArray(value) && value.every(holds);
const listOfSize = (size, holds) => (value) => listOf(holds)(value) && value.length === size;
const having = (fields) => (value) =>
  isObject(value) && Object.entries(fields).every(([name, holds]) => holds(value[name]));

const isDraft = having({
  rule: isText,
  place: isCount,
  token: isCount,
  p: isNumber,
  q: absentOr(isNumber),
  bound: absentOr(isNumber),
  drafter: absentOr(isText),
});

/** The fields of a record that shows n tokens, as TokenExplanation of the API has them. */
function fieldsOfRecord(n) {
  const [numbers, numbersOrNull] = [listOfSize(n, isNumber), listOfSize(n, nullOr(isNumber))];
  return {
    index: isCount,
    position: isCount,
    key: isText,
    token_id: isCount,
    token: isText,
    bytes: listOf(isByte),
    origin: (value) => isText(value) && Object.hasOwn(ORIGINS, value),
    ids: listOfSize(n, isCount),
    tokens: listOfSize(n, isText),
    removed_by: listOfSize(n, isText),
    ended: absentOr(isText),
    draft: absentOr(isDraft),
    model: having({
      logits: numbersOrNull,
      probabilities: numbers,
      ranks: listOfSize(n, isCount),
      entropy: isNumber,
      varentropy: isNumber,
      conditional: absentOr(numbersOrNull),
      unconditional: absentOr(numbersOrNull),
    }),
    edits: listOf(
      having({ method: isText, fields: isObject, left: isCount, logits: numbersOrNull, probabilities: numbers }),
    ),
    refinements: listOf(
      having({
        method: isText,
        fields: isObject,
        before: isCount,
        kept: isCount,
        entropy: isNumber,
        probabilities: numbersOrNull,
        boundary: absentOr(isNumber),
      }),
    ),
    draw: having({
      probabilities: numbersOrNull,
      noise: numbersOrNull,
      scores: numbersOrNull,
      winner: isCount,
      runner_up: absentOr(isCount),
      margin: absentOr(isNumber),
    }),
    sentences: having({
      model: isText,
      edits: listOf(isText),
      refinements: listOf(isText),
      draw: isText,
      why_not: listOfSize(n, isText),
    }),
  };
}

const records = new Map(); // n → the predicate of records that show n tokens

/** Whether the page can show a record: each of its lists has a number for each shown token, the token among them. */
export function isRecord(record) {
  if (!isObject(record) || !Array.isArray(record.ids) || !record.ids.includes(record.token_id)) return false;
  const n = record.ids.length;
  if (!records.has(n)) records.set(n, having(fieldsOfRecord(n)));
  return records.get(n)(record);
}

/** A token of a run, without its record. */
export const isToken = having({ text: isText, channel: isText, time_ms: isNumber, special: absentOr(isBoolean) });

/** A run without its tokens and its request. */
export const isRun = having({
  tokens: Array.isArray,
  content: isText,
  calls: listOf(having({ id: absentOr(isText), function: having({ name: isText, arguments: isText }) })),
  finish: absentOr(isText),
  params: absentOr(isObject),
  error: absentOr(having({ message: isText })),
  fork: absentOr(having({ node: isText, at: isCount, token: isCount })),
});

export const isRequest = having({ path: isText, body: isObject });
