// The tree of turns, without signals: pure functions. A node is a turn of the user ("user"), a raw prompt ("prompt"),
// the result of a tool ("tool") or an answer ("answer"). Below each node one child is chosen: so one path is shown.
// {nodes: {id: {id, parent, kind, children: [ids], …}}, roots: [ids], chosen: {parent id or "": child id}}

export const EMPTY = { nodes: {}, roots: [], chosen: {} };

/** The tree with a node more, below `parent` (null: a root), chosen. */
export function added(tree, node, parent) {
  const nodes = { ...tree.nodes, [node.id]: { ...node, parent, children: [] } };
  if (parent !== null) nodes[parent] = { ...nodes[parent], children: [...nodes[parent].children, node.id] };
  const roots = parent === null ? [...tree.roots, node.id] : tree.roots;
  return { nodes, roots, chosen: { ...tree.chosen, [parent ?? ""]: node.id } };
}

/** The nodes that are shown, from the root on. */
export function path(tree) {
  const found = [];
  for (let id = tree.chosen[""]; id; id = tree.chosen[id]) found.push(tree.nodes[id]);
  return found;
}

/** The nodes from the root to this one. */
export function above(tree, id) {
  const found = [];
  for (; id; id = tree.nodes[id].parent) found.unshift(tree.nodes[id]);
  return found;
}

/** The tree with other fields of a node. */
export const changed = (tree, id, fields) => ({
  ...tree,
  nodes: { ...tree.nodes, [id]: { ...tree.nodes[id], ...fields } },
});

/** A node and all nodes below it. */
export function below(tree, id) {
  const found = [tree.nodes[id]];
  for (let i = 0; i < found.length; i++) found.push(...found[i].children.map((child) => tree.nodes[child]));
  return found;
}

/** The tree without a node and those below it. A sibling of the node is shown in its place. */
export function removed(tree, id) {
  const gone = new Set(below(tree, id).map((node) => node.id));
  const { parent } = tree.nodes[id];
  const left = Object.entries(tree.nodes).filter(([each]) => !gone.has(each));
  const nodes = Object.fromEntries(left);
  const roots = tree.roots.filter((each) => each !== id);
  if (parent !== null)
    nodes[parent] = { ...nodes[parent], children: nodes[parent].children.filter((each) => each !== id) };
  const stays = ([above, child]) => !gone.has(above) && !gone.has(child);
  const chosen = Object.fromEntries(Object.entries(tree.chosen).filter(stays));
  const next = (parent === null ? roots : nodes[parent].children).at(-1);
  const was = tree.chosen[parent ?? ""] === id;
  return { nodes, roots, chosen: was && next ? { ...chosen, [parent ?? ""]: next } : chosen };
}

/** A node with those that share its parent, itself among them. */
export const siblings = (tree, id) => {
  const { parent } = tree.nodes[id];
  return parent === null ? tree.roots : tree.nodes[parent].children;
};

/** The tree with the path through this node. */
export function through(tree, id) {
  const chosen = { ...tree.chosen };
  for (const node of above(tree, id)) chosen[node.parent ?? ""] = node.id;
  return { ...tree, chosen };
}

/** Where two lists of tokens part: the first index at which they differ; null if one is the beginning of the other. */
export function firstDifference(left, right) {
  const most = Math.min(left.length, right.length);
  for (let i = 0; i < most; i++) if (left[i].record.token_id !== right[i].record.token_id) return i;
  return null;
}
