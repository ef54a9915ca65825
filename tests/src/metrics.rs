//! Parses `/metrics` as strictly as Prometheus does.

use std::collections::{BTreeMap, HashMap};

/// A request does not wait for another one to compute so few tokens of a common prefix. On a busy machine a fork may start
/// when only these are left.
pub const NOT_WORTH_WAITING: usize = 33;

/// The samples of one scrape, by name and labels as written.
#[derive(Clone, Debug)]
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Parses the text format. Panics at anything Prometheus refuses.
    pub fn read(text: &str) -> Self {
        let mut samples = BTreeMap::new();
        let mut typed = HashMap::new();
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
                        assert!(["counter", "gauge", "histogram"].contains(&what), "{line}");
                        assert!(typed.insert(name, what).is_none(), "two TYPE lines: {line}");
                    }
                    _ => panic!("neither HELP nor TYPE: {line}"),
                }
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect(line);
            let value: f64 = value.parse().expect(line);
            let bare = name.split('{').next();
            let bare = bare.expect("splitting gives one at least");
            let part = bare.strip_prefix(family);
            let part = part.unwrap_or_else(|| panic!("not of the family {family}: {line}"));
            let parts: &[&str] = match typed.get(family) {
                Some(&"histogram") => &["_bucket", "_sum", "_count"],
                Some(_) => &[""],
                None => panic!("a sample follows its TYPE: {line}"),
            };
            assert!(parts.contains(&part), "not of the family {family}: {line}");
            assert!(
                samples.insert(name.to_owned(), value).is_none(),
                "two samples of {name}"
            );
        }
        let metrics = Metrics(samples);
        for (family, _) in typed.iter().filter(|(_, kind)| **kind == "histogram") {
            metrics.histogram(family).check(family);
        }
        metrics
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

    /// One sample, or 0 if it is missing: a label appears with its first event.
    pub fn get_or_zero(&self, sample: &str) -> f64 {
        self.0.get(sample).copied().unwrap_or(0.0)
    }

    /// The samples of a family by their labels as written.
    pub fn samples(&self, family: &str) -> BTreeMap<String, f64> {
        let labels = |sample: &String| {
            let labels = sample.strip_prefix(family)?.strip_prefix('{')?;
            Some(labels.strip_suffix('}')?.to_owned())
        };
        let samples = self.0.iter();
        samples
            .filter_map(|(sample, value)| Some((labels(sample)?, *value)))
            .collect()
    }

    /// The growth of a counter since `before`.
    pub fn growth(&self, name: &str, before: &Metrics) -> f64 {
        self.get(name) - before.get(name)
    }

    /// Checks that so many generations since `before` computed their common prompt once.
    pub fn check_prompt_was_shared(
        &self,
        prompt_tokens: usize,
        generations: usize,
        before: &Metrics,
    ) {
        let growth = |name: &str| self.growth(&format!("corral_engine_{name}_total"), before);
        assert_eq!(growth("requests_finished"), generations as f64);
        let computed = growth("prompt_tokens") - growth("prefix_cache_hit_tokens");
        let most = prompt_tokens + (generations - 1) * NOT_WORTH_WAITING;
        assert!(computed <= most as f64, "{computed} of at most {most}");
    }

    /// A histogram, summed over all labels but `le`.
    pub fn histogram(&self, family: &str) -> Histogram {
        let bucket = format!("{family}_bucket{{");
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (sample, &value) in &self.0 {
            if !sample.starts_with(&bucket) {
                continue;
            }
            let bound = sample.rsplit_once("le=\"").expect(sample).1;
            let bound: f64 = bound.trim_end_matches("\"}").parse().expect(sample);
            match buckets.iter_mut().find(|(known, _)| *known == bound) {
                Some((_, count)) => *count += value,
                None => buckets.push((bound, value)),
            }
        }
        buckets.sort_by(|(one, _), (other, _)| one.total_cmp(other));
        Histogram {
            buckets,
            sum: self.get(&format!("{family}_sum")),
            count: self.get(&format!("{family}_count")),
        }
    }

    /// Asserts the engine's token identity, which holds when nothing runs: tokens computed = prompt − cached +
    /// generated − 1 per request − forced at the end + rejected drafts + next-token requests + recomputed +
    /// discarded.
    pub(crate) fn check_token_identity(&self) {
        let get = |name: &str| self.get(&format!("corral_engine_{name}_total"));
        assert_eq!(
            get("computed_tokens"),
            get("prompt_tokens") - get("prefix_cache_hit_tokens") + get("generated_tokens")
                - get("requests_finished")
                - get("forced_tokens_uncomputed")
                + get("draft_tokens_rejected")
                + get("next_token_computed_tokens")
                + get("recomputed_tokens")
                + get("discarded_tokens"),
            "{self:#?}"
        );
    }

    /// The metrics of `names` that are not 0.
    pub fn nonzero(&self, names: &[&str]) -> Vec<(String, f64)> {
        names
            .iter()
            .map(|name| ((*name).to_owned(), self.get(name)))
            .filter(|(_, value)| *value != 0.0)
            .collect()
    }
}

/// A histogram with cumulative buckets.
#[derive(Clone, Debug)]
pub struct Histogram {
    /// Ascending upper bounds, each with the number of observations up to it.
    pub buckets: Vec<(f64, f64)>,
    /// The sum of all observations.
    pub sum: f64,
    /// The number of all observations.
    pub count: f64,
}

impl Histogram {
    /// Asserts that the buckets are cumulative and the last one is `+Inf`.
    fn check(&self, family: &str) {
        let rising = self.buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1);
        assert!(rising, "buckets are cumulative: {family}: {self:?}");
        let last = self.buckets.last().copied();
        let all = Some((f64::INFINITY, self.count));
        assert_eq!(last, all, "the last bucket holds all: {family}");
    }
}
