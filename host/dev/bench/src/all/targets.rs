//! Targets, and their figures in the JSON objects of benches.

use corral_cli::terminal::align;
use serde_json::{Value, json};

/// The bound of a target.
#[derive(Clone, Copy)]
pub(super) enum Bound {
    AtLeast(f64),
    AtMost(f64),
    /// Reported without a bound.
    None,
}

/// A figure with a bound, and its place in the result of a bench.
pub(super) struct Target {
    /// The figure in words, with its unit.
    what: &'static str,
    bound: Bound,
    /// The factor from seconds and fractions to the unit.
    scale: f64,
    /// The members of its row; none if the figure is not in a row.
    row: Vec<(&'static str, Value)>,
    /// JSON pointer to the figure.
    field: &'static str,
    /// JSON pointers to the minimum and the maximum of the rounds, if the bench reports them.
    ends: Option<[&'static str; 2]>,
}

impl Target {
    pub(super) fn new(what: &'static str, bound: Bound, field: &'static str) -> Self {
        Self {
            what,
            bound,
            scale: 1.0,
            row: Vec::new(),
            field,
            ends: None,
        }
    }

    pub(super) fn scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// Finds the figure in the first row with this member, besides those of earlier calls.
    pub(super) fn of(mut self, member: &'static str, value: impl Into<Value>) -> Self {
        self.row.push((member, value.into()));
        self
    }

    /// Adds the minimum and the maximum of the rounds.
    pub(super) fn ends(mut self, min: &'static str, max: &'static str) -> Self {
        self.ends = Some([min, max]);
        self
    }

    /// The figure of a result.
    pub(super) fn figure(&self, result: &Value) -> Figure {
        let found = match self.row.as_slice() {
            [] => Some(result),
            members => result["rows"].as_array().and_then(|rows| {
                let fits = |row: &&Value| members.iter().all(|(key, value)| &row[*key] == value);
                rows.iter().find(fits)
            }),
        };
        let scaled = |field: &str| {
            let value = found?.pointer(field)?.as_f64()? * self.scale;
            // A division by zero is not a figure.
            value.is_finite().then_some(value)
        };
        Figure {
            what: self.what,
            bound: self.bound,
            value: scaled(self.field),
            ends: self
                .ends
                .and_then(|[min, max]| Some([scaled(min)?, scaled(max)?])),
        }
    }
}

/// A target with its figure, none if the bench failed.
pub(super) struct Figure {
    what: &'static str,
    bound: Bound,
    value: Option<f64>,
    /// The minimum and the maximum of the rounds.
    ends: Option<[f64; 2]>,
}

impl Figure {
    /// Whether the target is met; nothing without a bound or a figure.
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
            "min": self.ends.map(|[min, _]| min),
            "max": self.ends.map(|[_, max]| max),
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
    let titles = ["", "what", "target", "figure", "min", "max"];
    let mut lines = vec![titles.map(str::to_owned).to_vec()];
    for figure in figures {
        let met = match figure.met() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        let value = figure.value.map_or("not measured".to_owned(), number);
        let [min, max] = figure
            .ends
            .map_or([String::new(), String::new()], |ends| ends.map(number));
        lines.push(vec![
            met.to_owned(),
            figure.what.to_owned(),
            bound(figure.bound),
            value,
            min,
            max,
        ]);
    }
    align(&lines, |column| column >= 3)
}

/// A number with three significant digits.
fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_found_and_scaled() {
        let result = json!({"rows": [
            {"variant": "a", "streams": 1, "time_s": 1},
            {"variant": "a", "streams": 8, "time_s": 0.002, "min_s": 0.001, "max_s": 0.003},
        ]});
        let target = |bound| {
            let target = Target::new("time, ms", bound, "/time_s").scale(1e3);
            target.of("variant", "a").of("streams", 8)
        };
        let figure = |bound| target(bound).figure(&result);
        assert_eq!(figure(Bound::AtMost(2.0)).met(), Some(true));
        assert_eq!(figure(Bound::AtMost(1.9)).met(), Some(false));
        assert_eq!(figure(Bound::AtLeast(2.1)).met(), Some(false));
        assert_eq!(figure(Bound::None).met(), None);
        let none = target(Bound::AtMost(2.0)).figure(&Value::Null);
        assert_eq!(none.met(), None);
        assert_eq!(none.json()["figure"], Value::Null);
        let expected = "        what      target             figure   min   max\n\
                        MISSED  time, ms  at most 1.9          2.00  1.00  3.00\n        \
                        time, ms  at most 2    not measured\n";
        let ends = target(Bound::AtMost(1.9)).ends("/min_s", "/max_s");
        let ends = ends.figure(&result);
        assert_eq!(ends.json()["min"], 1.0);
        assert_eq!(ends.json()["max"], 3.0);
        assert_eq!(table(&[ends, none]), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        let text: Vec<_> = [0.0, 0.9961, 1.5, 25.04, 123.6].map(number).into();
        assert_eq!(text, ["0.000", "0.996", "1.50", "25.0", "124"]);
    }
}
