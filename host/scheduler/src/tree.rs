//! A radix tree over token ids: who holds a text that begins like this one?
//!
//! Paths that begin alike share their nodes, so a prompt is compared with all others in one walk.
//! The tree knows no cells and no ids; a holder is a name. Each [`PrefixScope`] has a tree of its own, and
//! nothing is ever found across scopes.
//!
//! Invariants, tested against a plain list: every node but a root has holders or at least two
//! children, so there are at most two nodes for each holder; the children of a node begin with
//! different tokens.

use super::PrefixScope;
use crate::Token;
use std::collections::{BTreeMap, HashMap};

/// Index of a node.
type Index = usize;

#[derive(Clone, Debug, Default)]
struct Node<H> {
    /// Tokens from the parent to here; none in a root.
    edge: Vec<Token>,
    parent: Option<Index>,
    /// By the first token of their edges. Ordered, so that searches always go the same way.
    children: BTreeMap<Token, Index>,
    /// Whose paths end here.
    holders: Vec<H>,
}

/// The trees of all scopes.
#[derive(Clone, Debug)]
pub struct Tree<H> {
    nodes: Vec<Node<H>>,
    unused: Vec<Index>,
    roots: HashMap<PrefixScope, Index>,
}

impl<H> Default for Tree<H> {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            unused: Vec::new(),
            roots: HashMap::new(),
        }
    }
}

/// Number of tokens that both begin with.
fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl<H: Copy + Eq> Tree<H> {
    /// Puts a holder at the end of a path.
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
            let shared = common(&self.nodes[child].edge, rest);
            node = if shared == self.nodes[child].edge.len() {
                child
            } else {
                self.split(child, shared)
            };
            rest = &rest[shared..];
        }
        self.nodes[node].holders.push(holder);
    }

    /// Takes a holder away from the end of its path. False if it was not there.
    pub fn remove(&mut self, scope: PrefixScope, path: &[Token], holder: H) -> bool {
        let Some((node, rest)) = self.walk(scope, path).pop() else {
            return false;
        };
        let holders = &mut self.nodes[node].holders;
        let place = holders.iter().position(|&other| other == holder);
        let Some(place) = place.filter(|_| rest == path.len()) else {
            return false;
        };
        holders.swap_remove(place);
        self.tidy(scope, node);
        true
    }

    /// Up to `most` holders, those first that share the most tokens with `path`, with how many they
    /// share; at least one each.
    pub fn nearest(&self, scope: PrefixScope, path: &[Token], most: usize) -> Vec<(H, usize)> {
        let mut found = Vec::new();
        let walked = self.walk(scope, path);
        // Where the walk ended inside an edge, all behind that edge share as much.
        let mut came_from = None;
        if let Some(&(node, depth)) = walked.last() {
            let rest = &path[depth..];
            let next = rest.first().and_then(|t| self.nodes[node].children.get(t));
            if let Some(&child) = next {
                let shared = depth + common(&self.nodes[child].edge, rest);
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

    /// Holders whose whole path is a beginning of `path`, the shortest first.
    pub fn beginnings(&self, scope: PrefixScope, path: &[Token]) -> Vec<H> {
        let nodes = self.walk(scope, path).into_iter();
        nodes
            .flat_map(|(node, _)| self.nodes[node].holders.iter().copied())
            .collect()
    }

    /// Whether a holder's path begins with `path`, of which there is at least one token.
    pub fn continues(&self, scope: PrefixScope, path: &[Token], which: impl Fn(H) -> bool) -> bool {
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
        first.is_some_and(|first| self.below(first, None).any(which))
    }

    /// Nodes from the root on whose paths `path` begins with, with their depths in tokens.
    fn walk(&self, scope: PrefixScope, path: &[Token]) -> Vec<(Index, usize)> {
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

    /// Adds the holders at and below `node`, but not below `without`.
    fn collect(
        &self,
        node: Index,
        without: Option<Index>,
        shared: usize,
        most: usize,
        found: &mut Vec<(H, usize)>,
    ) {
        let room = most.saturating_sub(found.len());
        let holders = self.below(node, without).take(room);
        found.extend(holders.map(|holder| (holder, shared)));
    }

    /// The holders at a node and then those below it, but not at or below `without`. A node is looked
    /// at when it is its turn: where texts part there may be very many.
    fn below(&self, node: Index, without: Option<Index>) -> impl Iterator<Item = H> {
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

    fn add(&mut self, edge: Vec<Token>, parent: Option<Index>) -> Index {
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

    /// Cuts a node's edge after `at` tokens; returns the new node above it.
    fn split(&mut self, node: Index, at: usize) -> Index {
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

    fn adopt(&mut self, parent: Index, child: Index) {
        self.nodes[child].parent = Some(parent);
        if let Some(&first) = self.nodes[child].edge.first() {
            self.nodes[parent].children.insert(first, child);
        }
    }

    /// Removes a node that says nothing any more, and joins its parent with what is left there.
    fn tidy(&mut self, scope: PrefixScope, node: Index) {
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

    fn drop_node(&mut self, node: Index) {
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

    const HERE: PrefixScope = PrefixScope(1);

    impl<H: Copy + Eq> Tree<H> {
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
    fn the_nearest_come_first_and_scopes_see_nothing_of_each_other() {
        let mut tree = Tree::default();
        tree.insert(HERE, &[1, 2, 3, 4], 'a');
        tree.insert(HERE, &[1, 2, 9], 'b');
        tree.insert(HERE, &[1, 2], 'c');
        tree.insert(HERE, &[7], 'd');
        tree.insert(PrefixScope(2), &[1, 2, 3, 4, 5], 'e');
        tree.check();
        let near = |path: &[Token], most| tree.nearest(HERE, path, most);
        assert_eq!(near(&[1, 2, 3, 4, 5], 9), [('a', 4), ('c', 2), ('b', 2)]);
        assert_eq!(near(&[1, 2, 3, 8], 1), [('a', 3)]);
        assert_eq!(near(&[1, 8], 9), [('c', 1), ('a', 1), ('b', 1)]);
        assert_eq!(near(&[8], 9), []);
        assert_eq!(near(&[], 9), []);
        assert_eq!(tree.beginnings(HERE, &[1, 2, 3, 4, 5]), ['c', 'a']);
        assert!(tree.continues(HERE, &[1, 2, 3], |holder| holder == 'a'));
        assert!(!tree.continues(HERE, &[1, 2, 3], |holder| holder == 'b'));
        assert!(!tree.continues(HERE, &[1, 2, 3, 4, 5], |_| true));
        assert!(!tree.remove(HERE, &[1, 2, 3], 'a'));
        assert!(!tree.remove(PrefixScope(3), &[7], 'd'));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn it_finds_what_a_plain_list_finds(
            ops in proptest::collection::vec(
                (any::<bool>(), 0..2u64, proptest::collection::vec(0..3u32, 0..7)),
                1..60,
            )
        ) {
            let mut tree = Tree::default();
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
                    .map(|entry| (entry.2, common(&entry.1, &path)))
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
                let mut beginnings = tree.beginnings(scope, &path);
                whole.sort_unstable();
                beginnings.sort_unstable();
                prop_assert_eq!(beginnings, whole);
            }
            for (scope, path, holder) in list {
                prop_assert!(tree.remove(scope, &path, holder));
            }
            prop_assert_eq!(tree.nodes.len(), tree.unused.len());
        }
    }
}
