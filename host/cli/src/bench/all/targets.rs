//! What is promised, and where in a bench's object the figure for it stands.

use serde_json::{Value, json};

/// A bound on a figure.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Told, and not promised.
    None,
}

/// One thing that is promised.
pub(super) struct Target {
    /// In words, with its unit.
    what: &'static str,
    bound: Bound,
    /// What seconds and parts are multiplied with for the table.
    scale: f64,
    find: Find,
    /// The least and the most of single rounds, where the bench tells them.
    ends: Option<[Find; 2]>,
}

/// Where a figure stands in what a bench found.
pub(super) type Find = fn(&Value) -> Option<f64>;

impl Target {
    pub(super) fn new(what: &'static str, bound: Bound, scale: f64, find: Find) -> Self {
        Self {
            what,
            bound,
            scale,
            find,
            ends: None,
        }
    }

    /// With the least and the most of its rounds.
    pub(super) fn ends(mut self, least: Find, most: Find) -> Self {
        self.ends = Some([least, most]);
        self
    }

    /// The figure in what a bench found.
    pub(super) fn figure(&self, found: &Value) -> Figure {
        // Where nothing came of something it is no number.
        let scaled = |find: Find| {
            let value = find(found)? * self.scale;
            value.is_finite().then_some(value)
        };
        Figure {
            what: self.what,
            bound: self.bound,
            value: scaled(self.find),
            ends: self
                .ends
                .and_then(|[least, most]| Some([scaled(least)?, scaled(most)?])),
        }
    }
}

/// A target with its figure; none if the bench failed.
pub(super) struct Figure {
    what: &'static str,
    bound: Bound,
    value: Option<f64>,
    /// The least and the most of its rounds.
    ends: Option<[f64; 2]>,
}

impl Figure {
    /// Whether the target is met; nothing where there is none, or no figure.
    fn met(&self) -> Option<bool> {
        let value = self.value?;
        match self.bound {
            Bound::AtLeast(bound) => Some(value >= bound),
            Bound::AtMost(bound) => Some(value <= bound),
            Bound::None => None,
        }
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "target": self.what,
            "bound": bound(self.bound),
            "figure": self.value,
            "least": self.ends.map(|[least, _]| least),
            "most": self.ends.map(|[_, most]| most),
            "met": self.met(),
        })
    }
}

fn bound(bound: Bound) -> String {
    match bound {
        Bound::AtLeast(bound) => format!("at least {bound}"),
        Bound::AtMost(bound) => format!("at most {bound}"),
        Bound::None => "-".to_owned(),
    }
}

/// A line for each target.
pub(super) fn table(figures: &[Figure]) -> String {
    let mut lines = vec![[
        "".into(),
        "what".to_owned(),
        "target".into(),
        "figure".into(),
        "least".into(),
        "most".into(),
    ]];
    for figure in figures {
        let met = match figure.met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let value = match figure.value {
            Some(value) => number(value),
            None => "not measured".into(),
        };
        let [least, most] = match figure.ends {
            Some(ends) => ends.map(number),
            None => [String::new(), String::new()],
        };
        lines.push([
            met.to_owned(),
            figure.what.to_owned(),
            bound(figure.bound),
            value,
            least,
            most,
        ]);
    }
    let width = |column: usize| {
        let cells = lines.iter().map(|line| line[column].chars().count());
        cells.max().unwrap_or(0)
    };
    let widths = [0, 1, 2, 3, 4, 5].map(width);
    let line = |cells: &[String; 6]| {
        let cells = cells.iter().zip(widths).enumerate();
        let padded = cells.map(|(column, (cell, width))| match column {
            0..3 => format!("{cell:width$}"),
            _ => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Three figures that count.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

/// The member `field` of the first row in which each of `keys` is what it is said to be.
pub(super) fn row(found: &Value, keys: &[(&str, Value)], field: &str) -> Option<f64> {
    let rows = found["rows"].as_array()?;
    let fits = |row: &&Value| keys.iter().all(|(key, value)| &row[*key] == value);
    rows.iter().find(fits)?[field].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_scaled_and_judged() {
        let found = json!({"rows": [
            {"way": "a", "streams": 1, "time_s": 1},
            {"way": "a", "streams": 8, "time_s": 0.002},
        ]});
        let find: fn(&Value) -> Option<f64> = |found| {
            row(
                found,
                &[("way", json!("a")), ("streams", json!(8))],
                "time_s",
            )
        };
        let figure = |bound| Target::new("time, ms", bound, 1e3, find).figure(&found);
        assert_eq!(figure(Bound::AtMost(2.0)).met(), Some(true));
        assert_eq!(figure(Bound::AtMost(1.9)).met(), Some(false));
        assert_eq!(figure(Bound::AtLeast(2.1)).met(), Some(false));
        assert_eq!(figure(Bound::None).met(), None);
        let none = Target::new("time, ms", Bound::AtMost(2.0), 1e3, find).figure(&Value::Null);
        assert_eq!(none.met(), None);
        assert_eq!(none.json()["figure"], Value::Null);
        let expected = "        what      target             figure  least  most\n\
                        MISSED  time, ms  at most 1.9          2.00   1.00  3.00\n        \
                        time, ms  at most 2    not measured";
        let ends = Target::new("time, ms", Bound::AtMost(1.9), 1e3, find)
            .ends(|_| Some(0.001), |_| Some(0.003))
            .figure(&found);
        assert_eq!(ends.json()["least"], 1.0);
        assert_eq!(ends.json()["most"], 3.0);
        assert_eq!(table(&[ends, none]), expected);
    }

    #[test]
    fn numbers_have_three_figures() {
        let text: Vec<_> = [0.0, 0.9961, 1.5, 25.04, 123.6].map(number).into();
        assert_eq!(text, ["0.000", "0.996", "1.50", "25.0", "124"]);
    }
}
