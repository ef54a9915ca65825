//! Figures of a bench: one JSON object, or a table of the same rows.

use crate::terminal::align;
use serde_json::{Value, json};

/// A column: its title, its key in each row, and its unit.
pub type Column = (&'static str, &'static str, Unit);

/// How the table shows a value. JSON has seconds, tokens per second and fractions.
#[derive(Clone, Copy)]
pub enum Unit {
    Plain,
    Whole,
    Ratio,
    Thousandths,
    Milliseconds,
    Microseconds,
    Tenths,
    Percent,
}

impl Unit {
    fn text(self, value: &Value) -> String {
        // Not every row has every value.
        if value.is_null() {
            return "-".to_owned();
        }
        let number = value.as_f64().unwrap_or(0.0);
        match self {
            Unit::Plain => value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned),
            Unit::Whole => format!("{number:.0}"),
            Unit::Ratio => format!("{number:.2}"),
            Unit::Thousandths => format!("{number:.3}"),
            Unit::Milliseconds => format!("{:.2}", 1e3 * number),
            Unit::Tenths => format!("{number:.1}"),
            Unit::Microseconds => format!("{:.1}", 1e6 * number),
            Unit::Percent => format!("{:.1} %", 100.0 * number),
        }
    }
}

/// Prints `setup` with `rows` as JSON, or `rows` as a table below `title`.
pub fn print(as_json: bool, mut setup: Value, title: &str, columns: &[Column], rows: &[Value]) {
    if as_json {
        setup["rows"] = json!(rows);
        println!("{setup}");
    } else {
        println!("{title}");
        print!("{}", table(columns, rows));
    }
}

fn table(columns: &[Column], rows: &[Value]) -> String {
    let titles = columns.iter().map(|(title, ..)| (*title).to_owned());
    let mut lines = vec![titles.collect()];
    lines.extend(rows.iter().map(|row| {
        let cells = columns.iter().map(|(_, key, unit)| unit.text(&row[*key]));
        cells.collect()
    }));
    align(&lines, |_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_shown_in_their_units() {
        let columns = [
            ("way", "way", Unit::Plain),
            ("gap", "gap_s", Unit::Milliseconds),
            ("share", "share", Unit::Percent),
            ("n", "n", Unit::Plain),
            ("cost", "cost_us", Unit::Tenths),
        ];
        let rows = [
            json!({"way": "slot order", "gap_s": 0.0125, "share": 0.5, "n": 1, "cost_us": 2.26}),
            json!({"way": "other", "gap_s": 1, "share": 1, "n": 12}),
            json!({"way": "none"}),
        ];
        let expected = "       way      gap    share   n  cost\n\
                        slot order    12.50   50.0 %   1   2.3\n     \
                        other  1000.00  100.0 %  12     -\n      \
                        none        -        -   -     -\n";
        assert_eq!(table(&columns, &rows), expected);
    }
}
