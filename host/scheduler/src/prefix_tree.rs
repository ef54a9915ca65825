//! A radix tree over token ids: finds the holders of texts that share a prefix with a prompt.
//!
//! Texts with a common prefix share nodes, so one walk compares a prompt with all of them. The tree knows
//! no cells; a holder is an opaque name. Each [`PrefixScope`] has its own tree, and no search crosses scopes.
//!
//! Invariants, tested against a plain list: every node but a root has holders or at least two children, so
//! there are at most two nodes for each holder; the children of a node begin with different tokens.

use crate::Token;
use crate::request::PrefixScope;
use std::collections::{BTreeMap, HashMap};

/// Index of a node.
type NodeIndex = usize;

#[derive(Clone, Debug, Default)]
struct Node<H> {
    /// Tokens from the parent to this node; none in a root.
    edge: Vec<Token>,
    parent: Option<NodeIndex>,
    /// By the first token of their edges. Ordered, so that searches are deterministic.
    children: BTreeMap<Token, NodeIndex>,
    /// Holders whose paths end here.
    holders: Vec<H>,
}

/// The radix trees of all scopes.
#[derive(Clone, Debug)]
pub struct PrefixTree<H> {
    nodes: Vec<Node<H>>,
    unused: Vec<NodeIndex>,
    roots: HashMap<PrefixScope, NodeIndex>,
}

impl<H> Default for PrefixTree<H> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            unused: Vec::new(),
            roots: HashMap::new(),
        }
    }
}

/// Length of the common prefix.
fn common_prefix(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<H: Copy + Eq> PrefixTree<H> {
    /// Adds a holder at the end of a path.
    pub fn insert(&mut self, scope: PrefixScope, path: &[Token], holder: H) {
        let root = match self.roots.get(&scope) {
            Some(&root) => root,
            None => {
                let root = self.add(Vec::new(), None);
                self.roots.insert(scope, root);
                root
            }
        };
        let (mut node, mut rest) = (root, path);
        while let Some(first) = rest.first() {
            let Some(&child) = self.nodes[node].children.get(first) else {
                let leaf = self.add(rest.to_vec(), Some(node));
                self.nodes[node].children.insert(*first, leaf);
                node = leaf;
                break;
            };
            let shared = common_prefix(&self.nodes[child].edge, rest);
            node = if shared == self.nodes[child].edge.len() {
                child
            } else {
                self.split(child, shared)
            };
            rest = &rest[shared..];
        }
        self.nodes[node].holders.push(holder);
    }

    /// Removes a holder from the end of its path. False if it was not there.
    pub fn remove(&mut self, scope: PrefixScope, path: &[Token], holder: H) -> bool {
        let Some((node, rest)) = self.walk(scope, path).pop() else {
            return false;
        };
        let holders = &mut self.nodes[node].holders;
        let index = holders.iter().position(|&other| other == holder);
        let Some(index) = index.filter(|_| rest == path.len()) else {
            return false;
        };
        holders.swap_remove(index);
        self.tidy(scope, node);
        true
    }

    /// Up to `most` holders that share at least one token with `path`, and the number of shared tokens,
    /// highest first.
    pub fn nearest(&self, scope: PrefixScope, path: &[Token], most: usize) -> Vec<(H, usize)> {
        let mut found = Vec::new();
        let walked = self.walk(scope, path);
        // If the walk ended inside an edge, all holders behind that edge share as much.
        let mut came_from = None;
        if let Some(&(node, depth)) = walked.last() {
            let rest = &path[depth..];
            let next = rest.first().and_then(|t| self.nodes[node].children.get(t));
            if let Some(&child) = next {
                let shared = depth + common_prefix(&self.nodes[child].edge, rest);
                self.collect(child, None, shared, most, &mut found);
                came_from = Some(child);
            }
        }
        for &(node, depth) in walked.iter().rev().filter(|(_, depth)| *depth > 0) {
            self.collect(node, came_from, depth, most, &mut found);
            came_from = Some(node);
        }
        found
    }

    /// Holders whose whole path is a prefix of `path`, the shortest first.
    pub fn prefixes_of(&self, scope: PrefixScope, path: &[Token]) -> Vec<H> {
        let nodes = self.walk(scope, path).into_iter();
        nodes
            .flat_map(|(node, _)| self.nodes[node].holders.iter().copied())
            .collect()
    }

    /// Whether the path of a holder that `matches` starts with `path`. False for an empty `path`.
    pub fn has_extension(
        &self,
        scope: PrefixScope,
        path: &[Token],
        matches: impl Fn(H) -> bool,
    ) -> bool {
        let Some((node, depth)) = self.walk(scope, path).pop().filter(|_| !path.is_empty()) else {
            return false;
        };
        let rest = &path[depth..];
        let first = match rest.first() {
            None => Some(node),
            Some(token) => {
                let child = self.nodes[node].children.get(token).copied();
                child.filter(|&child| self.nodes[child].edge.starts_with(rest))
            }
        };
        first.is_some_and(|first| self.below(first, None).any(matches))
    }

    /// All holders in the order of the trees, each with the number of tokens that its path shares with that of the holder
    /// before it.
    pub fn in_order(&self) -> Vec<(H, usize)> {
        let mut found = Vec::new();
        let mut roots: Vec<_> = self.roots.iter().collect();
        roots.sort_unstable();
        for (_, root) in roots {
            // Each with the depth of its parent.
            let mut open = vec![(*root, 0)];
            let mut shared = 0;
            while let Some((index, above)) = open.pop() {
                let node = &self.nodes[index];
                let depth = above + node.edge.len();
                shared = shared.min(above);
                for holder in &node.holders {
                    found.push((*holder, shared));
                    shared = depth;
                }
                let children = node.children.values().rev();
                open.extend(children.map(|child| (*child, depth)));
            }
        }
        found
    }

    /// The nodes from the root on whose paths are prefixes of `path`, with their depths in tokens.
    fn walk(&self, scope: PrefixScope, path: &[Token]) -> Vec<(NodeIndex, usize)> {
        let Some(&root) = self.roots.get(&scope) else {
            return Vec::new();
        };
        let mut walked = vec![(root, 0)];
        let (mut node, mut depth) = (root, 0);
        while let Some(&child) = path
            .get(depth)
            .and_then(|t| self.nodes[node].children.get(t))
        {
            let edge = &self.nodes[child].edge;
            if !path[depth..].starts_with(edge) {
                break;
            }
            depth += edge.len();
            node = child;
            walked.push((node, depth));
        }
        walked
    }

    /// Adds the holders at and below `node`, except at and below `without`.
    fn collect(
        &self,
        node: NodeIndex,
        without: Option<NodeIndex>,
        shared: usize,
        most: usize,
        found: &mut Vec<(H, usize)>,
    ) {
        let room = most.saturating_sub(found.len());
        let holders = self.below(node, without).take(room);
        found.extend(holders.map(|holder| (holder, shared)));
    }

    /// The holders at a node and then those below it, except at and below `without`. Lazy: a node may have
    /// very many below it.
    fn below(&self, node: NodeIndex, without: Option<NodeIndex>) -> impl Iterator<Item = H> {
        let mut here = self.nodes[node].holders.iter();
        let mut open = vec![self.nodes[node].children.values()];
        std::iter::from_fn(move || {
            loop {
                if let Some(&holder) = here.next() {
                    return Some(holder);
                }
                match open.last_mut()?.next() {
                    Some(&child) if Some(child) == without => {}
                    Some(&child) => {
                        here = self.nodes[child].holders.iter();
                        open.push(self.nodes[child].children.values());
                    }
                    None => {
                        open.pop();
                    }
                }
            }
        })
    }

    fn add(&mut self, edge: Vec<Token>, parent: Option<NodeIndex>) -> NodeIndex {
        let node = Node {
            edge,
            parent,
            children: BTreeMap::new(),
            holders: Vec::new(),
        };
        if let Some(index) = self.unused.pop() {
            self.nodes[index] = node;
            return index;
        }
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Splits a node's edge after `at` tokens and returns the new node above it.
    fn split(&mut self, node: NodeIndex, at: usize) -> NodeIndex {
        let tail = self.nodes[node].edge.split_off(at);
        let head = std::mem::replace(&mut self.nodes[node].edge, tail);
        let parent = self.nodes[node].parent;
        let first = head.first().copied();
        let upper = self.add(head, parent);
        if let (Some(parent), Some(first)) = (parent, first) {
            self.nodes[parent].children.insert(first, upper);
        }
        self.adopt(upper, node);
        upper
    }

    fn adopt(&mut self, parent: NodeIndex, child: NodeIndex) {
        self.nodes[child].parent = Some(parent);
        if let Some(&first) = self.nodes[child].edge.first() {
            self.nodes[parent].children.insert(first, child);
        }
    }

    /// Removes a node without holders, or merges it with its only child.
    fn tidy(&mut self, scope: PrefixScope, node: NodeIndex) {
        let Some(parent) = self.nodes[node].parent else {
            if self.nodes[node].holders.is_empty() && self.nodes[node].children.is_empty() {
                self.roots.remove(&scope);
                self.drop_node(node);
            }
            return;
        };
        if !self.nodes[node].holders.is_empty() {
            return;
        }
        let mut children = self.nodes[node].children.values().copied();
        match (children.next(), children.next()) {
            (None, _) => {
                if let Some(first) = self.nodes[node].edge.first() {
                    let first = *first;
                    self.nodes[parent].children.remove(&first);
                }
                self.drop_node(node);
                self.tidy(scope, parent);
            }
            (Some(only), None) => {
                let mut edge = std::mem::take(&mut self.nodes[node].edge);
                edge.append(&mut self.nodes[only].edge);
                self.nodes[only].edge = edge;
                self.adopt(parent, only);
                self.drop_node(node);
            }
            (Some(_), Some(_)) => {}
        }
    }

    fn drop_node(&mut self, node: NodeIndex) {
        self.nodes[node] = Node {
            edge: Vec::new(),
            parent: None,
            children: BTreeMap::new(),
            holders: Vec::new(),
        };
        self.unused.push(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SCOPE: PrefixScope = PrefixScope(1);

    impl<H: Copy + Eq> PrefixTree<H> {
        fn check(&self) {
            let used = self.nodes.len() - self.unused.len();
            let mut reached = 0;
            let mut open: Vec<_> = self.roots.values().copied().collect();
            while let Some(index) = open.pop() {
                reached += 1;
                let node = &self.nodes[index];
                let root = node.parent.is_none();
                assert_eq!(root, node.edge.is_empty());
                assert!(!node.holders.is_empty() || node.children.len() > usize::from(!root));
                for (first, &child) in &node.children {
                    assert_eq!(self.nodes[child].edge.first(), Some(first));
                    assert_eq!(self.nodes[child].parent, Some(index));
                    open.push(child);
                }
            }
            assert_eq!(reached, used);
        }
    }

    #[test]
    fn order_of_the_tree_tells_shared_tokens() {
        let mut tree = PrefixTree::default();
        for (path, holder) in [
            (&[1, 2, 9][..], 'd'),
            (&[1, 2, 3, 4], 'b'),
            (&[1, 2], 'a'),
            (&[1, 2, 3, 5, 6], 'c'),
            (&[7], 'e'),
        ] {
            tree.insert(SCOPE, path, holder);
        }
        tree.insert(PrefixScope(2), &[7, 8], 'f');
        tree.insert(PrefixScope(2), &[7, 8], 'g');
        let expected = [
            ('a', 0),
            ('b', 2),
            ('c', 3),
            ('d', 2),
            ('e', 0),
            ('f', 0),
            ('g', 2),
        ];
        assert_eq!(tree.in_order(), expected);
    }

    #[test]
    fn nearest_come_first_within_a_scope() {
        let mut tree = PrefixTree::default();
        tree.insert(SCOPE, &[1, 2, 3, 4], 'a');
        tree.insert(SCOPE, &[1, 2, 9], 'b');
        tree.insert(SCOPE, &[1, 2], 'c');
        tree.insert(SCOPE, &[7], 'd');
        tree.insert(PrefixScope(2), &[1, 2, 3, 4, 5], 'e');
        tree.check();
        let near = |path: &[Token], most| tree.nearest(SCOPE, path, most);
        assert_eq!(near(&[1, 2, 3, 4, 5], 9), [('a', 4), ('c', 2), ('b', 2)]);
        assert_eq!(near(&[1, 2, 3, 8], 1), [('a', 3)]);
        assert_eq!(near(&[1, 8], 9), [('c', 1), ('a', 1), ('b', 1)]);
        assert_eq!(near(&[8], 9), []);
        assert_eq!(near(&[], 9), []);
        assert_eq!(tree.prefixes_of(SCOPE, &[1, 2, 3, 4, 5]), ['c', 'a']);
        assert!(tree.has_extension(SCOPE, &[1, 2, 3], |holder| holder == 'a'));
        assert!(!tree.has_extension(SCOPE, &[1, 2, 3], |holder| holder == 'b'));
        assert!(!tree.has_extension(SCOPE, &[1, 2, 3, 4, 5], |_| true));
        assert!(!tree.remove(SCOPE, &[1, 2, 3], 'a'));
        assert!(!tree.remove(PrefixScope(3), &[7], 'd'));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn tree_matches_a_plain_list(
            ops in proptest::collection::vec(
                (any::<bool>(), 0..2u64, proptest::collection::vec(0..3u32, 0..7)),
                1..60,
            )
        ) {
            let mut tree = PrefixTree::default();
            let mut list: Vec<(PrefixScope, Vec<Token>, usize)> = Vec::new();
            for (number, (insert, scope, path)) in ops.into_iter().enumerate() {
                let scope = PrefixScope(scope);
                if insert || list.is_empty() {
                    tree.insert(scope, &path, number);
                    list.push((scope, path.clone(), number));
                } else {
                    let (scope, path, holder) = list.swap_remove(number % list.len());
                    prop_assert!(tree.remove(scope, &path, holder));
                    prop_assert!(!tree.remove(scope, &path, holder));
                }
                tree.check();
                let mut expected: Vec<_> = list
                    .iter()
                    .filter(|entry| entry.0 == scope)
                    .map(|entry| (entry.2, common_prefix(&entry.1, &path)))
                    .filter(|(_, shared)| *shared > 0)
                    .collect();
                let mut found = tree.nearest(scope, &path, usize::MAX);
                prop_assert!(found.is_sorted_by(|a, b| a.1 >= b.1));
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected);
                let mut whole: Vec<_> = list
                    .iter()
                    .filter(|entry| entry.0 == scope && path.starts_with(&entry.1))
                    .map(|entry| entry.2)
                    .collect();
                let mut found_prefixes = tree.prefixes_of(scope, &path);
                whole.sort_unstable();
                found_prefixes.sort_unstable();
                prop_assert_eq!(found_prefixes, whole);
            }
            for (scope, path, holder) in list {
                prop_assert!(tree.remove(scope, &path, holder));
            }
            prop_assert_eq!(tree.nodes.len(), tree.unused.len());
        }
    }
}
