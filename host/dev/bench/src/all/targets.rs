//! Targets, and where their figures are in the JSON object of a bench.

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

pub(super) struct Target {
    /// The figure in words, with its unit.
    what: &'static str,
    bound: Bound,
    /// The factor from seconds and fractions to the unit.
    scale: f64,
    find: Find,
    /// The minimum and the maximum of the rounds, if the bench reports them.
    ends: Option<[Find; 2]>,
}

/// Finds a figure in the result of a bench.
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

    /// Adds the minimum and the maximum of the rounds.
    pub(super) fn ends(mut self, min: Find, max: Find) -> Self {
        self.ends = Some([min, max]);
        self
    }

    /// The figure of a result.
    pub(super) fn figure(&self, result: &Value) -> Figure {
        // A division by zero is not a figure.
        let scaled = |find: Find| {
            let value = find(result)? * self.scale;
            value.is_finite().then_some(value)
        };
        Figure {
            what: self.what,
            bound: self.bound,
            value: scaled(self.find),
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
            "least": self.ends.map(|[min, _]| min),
            "most": self.ends.map(|[_, max]| max),
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

/// The member `field` of the first row with these keys.
pub(super) fn row(result: &Value, keys: &[(&str, Value)], field: &str) -> Option<f64> {
    let rows = result["rows"].as_array()?;
    let fits = |row: &&Value| keys.iter().all(|(key, value)| &row[*key] == value);
    rows.iter().find(fits)?[field].as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_is_found_and_scaled() {
        let result = json!({"rows": [
            {"way": "a", "streams": 1, "time_s": 1},
            {"way": "a", "streams": 8, "time_s": 0.002},
        ]});
        let find: fn(&Value) -> Option<f64> = |result| {
            row(
                result,
                &[("way", json!("a")), ("streams", json!(8))],
                "time_s",
            )
        };
        let figure = |bound| Target::new("time, ms", bound, 1e3, find).figure(&result);
        assert_eq!(figure(Bound::AtMost(2.0)).met(), Some(true));
        assert_eq!(figure(Bound::AtMost(1.9)).met(), Some(false));
        assert_eq!(figure(Bound::AtLeast(2.1)).met(), Some(false));
        assert_eq!(figure(Bound::None).met(), None);
        let none = Target::new("time, ms", Bound::AtMost(2.0), 1e3, find).figure(&Value::Null);
        assert_eq!(none.met(), None);
        assert_eq!(none.json()["figure"], Value::Null);
        let expected = "        what      target             figure   min   max\n\
                        MISSED  time, ms  at most 1.9          2.00  1.00  3.00\n        \
                        time, ms  at most 2    not measured\n";
        let ends = Target::new("time, ms", Bound::AtMost(1.9), 1e3, find)
            .ends(|_| Some(0.001), |_| Some(0.003))
            .figure(&result);
        assert_eq!(ends.json()["least"], 1.0);
        assert_eq!(ends.json()["most"], 3.0);
        assert_eq!(table(&[ends, none]), expected);
    }

    #[test]
    fn numbers_have_three_digits() {
        let text: Vec<_> = [0.0, 0.9961, 1.5, 25.04, 123.6].map(number).into();
        assert_eq!(text, ["0.000", "0.996", "1.50", "25.0", "124"]);
    }
}
