//! The largest of a list of sizes that a step may try: one above the largest that met its target.

/// An index into a list of sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StepSizeLimit {
    index: usize,
    top: usize,
}

impl StepSizeLimit {
    /// A limit at `index` of this many sizes.
    pub fn new(index: usize, sizes: usize) -> Self {
        let top = sizes.saturating_sub(1);
        Self {
            index: index.min(top),
            top,
        }
    }

    /// The index.
    pub fn index(self) -> usize {
        self.index
    }

    /// Records a step of the size at `index`: one that met its target raises the limit above it, one that did not
    /// lowers the limit below it.
    pub fn observe(&mut self, index: usize, met: bool) {
        if !met {
            self.index = self.index.min(index.saturating_sub(1));
        } else if index >= self.index {
            self.index = (index + 1).min(self.top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_rises_by_one_and_falls_below_failures() {
        let mut limit = StepSizeLimit::new(1, 4);
        let indices: Vec<_> = [
            (0, true),
            (1, true),
            (2, true),
            (3, true),
            (1, false),
            (3, false),
        ]
        .into_iter()
        .map(|(index, met)| {
            limit.observe(index, met);
            limit.index()
        })
        .collect();
        assert_eq!(indices, [1, 2, 3, 3, 0, 0]);
    }
}
