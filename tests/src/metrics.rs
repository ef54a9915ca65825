//! `/metrics`, read as strictly as Prometheus reads it.

use std::collections::{BTreeMap, HashSet};

/// The numbers of one scrape, by name and labels as they were written.
#[derive(Clone, Debug)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads the text format; panics at what Prometheus would refuse.
    pub fn read(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut typed = HashSet::new();
        let mut family = "";
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# ") {
                let mut words = rest.splitn(3, ' ');
                let (keyword, name) = (words.next(), words.next().expect(line));
                let what = words.next().expect(line);
                match keyword {
                    Some("HELP") => family = name,
                    Some("TYPE") => {
                        assert_eq!(name, family, "TYPE follows its HELP");
                        assert!(["counter", "gauge"].contains(&what), "{line}");
                        assert!(typed.insert(name), "two TYPE lines: {line}");
                    }
                    _ => panic!("neither HELP nor TYPE: {line}"),
                }
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            let bare = name
                .split('{')
                .next()
                .expect("splitting gives one at least");
            assert_eq!(bare, family, "a sample stands in its family");
            assert!(typed.contains(bare), "a sample follows its TYPE: {line}");
            assert!(
                samples.insert(name.to_owned(), value).is_none(),
                "two samples of {name}"
            );
        }
        Metrics(samples)
    }

    /// The sum of a family's samples; panics if it has none.
    pub fn get(&self, name: &str) -> f64 {
        let with_labels = format!("{name}{{");
        let mut samples = self
            .0
            .iter()
            .filter(|(sample, _)| *sample == name || sample.starts_with(&with_labels))
            .map(|(_, value)| *value)
            .peekable();
        assert!(samples.peek().is_some(), "no metric {name} in {self:#?}");
        samples.sum()
    }

    /// The same, and 0 when there is none: labels appear with their first event.
    pub fn get_or_zero(&self, sample: &str) -> f64 {
        self.0.get(sample).copied().unwrap_or(0.0)
    }

    /// Those of `names` that are not 0.
    pub fn not_zero(&self, names: &[&str]) -> Vec<(String, f64)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), self.get(name)))
            .filter(|(_, value)| *value != 0.0)
            .collect()
    }
}
