//! How large a thing may be tried, on a ladder of sizes: one place above what kept its time.

/// The largest place on a ladder that may be taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling {
    place: usize,
    top: usize,
}

impl Ceiling {
    /// A ceiling at `place`, on a ladder with so many places.
    pub fn new(place: usize, places: usize) -> Self {
        let top = places.saturating_sub(1);
        Self {
            place: place.min(top),
            top,
        }
    }

    /// Where it is.
    pub fn place(self) -> usize {
        self.place
    }

    /// A step was of the size at `place`: one that kept its time raises the ceiling to the next
    /// place, one that did not takes it below its own.
    pub fn tried(&mut self, place: usize, kept: bool) {
        if !kept {
            self.place = self.place.min(place.saturating_sub(1));
        } else if place >= self.place {
            self.place = (place + 1).min(self.top);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rises_by_one_and_falls_below_what_failed() {
        let mut ceiling = Ceiling::new(1, 4);
        let places: Vec<_> = [
            (0, true),
            (1, true),
            (2, true),
            (3, true),
            (1, false),
            (3, false),
        ]
        .into_iter()
        .map(|(place, kept)| {
            ceiling.tried(place, kept);
            ceiling.place()
        })
        .collect();
        assert_eq!(places, [1, 2, 3, 3, 0, 0]);
    }
}
