//! What a bench has found: one JSON object, or a table of the same rows for people.

use serde_json::{Value, json};

/// What a column shows: its title, the key in each row, and how it is written.
pub(super) type Column = (&'static str, &'static str, Unit);

/// How a value is written in the table. JSON has it as it is: seconds, tokens per second, parts of 1.
#[derive(Clone, Copy)]
pub(super) enum Unit {
    Plain,
    Whole,
    Ratio,
    Thousandths,
    Milliseconds,
    Microseconds,
    /// As it is, where it is known.
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

/// Prints `rows`: below `title`, or as a member of `setup` if `as_json`.
pub(super) fn tell(
    as_json: bool,
    mut setup: Value,
    title: &str,
    columns: &[Column],
    rows: &[Value],
) {
    if as_json {
        setup["rows"] = json!(rows);
        println!("{setup}");
    } else {
        println!("{title}");
        print!("{}", table(columns, rows));
    }
}

fn table(columns: &[Column], rows: &[Value]) -> String {
    let mut lines = vec![String::new(); rows.len() + 1];
    for &(title, key, unit) in columns {
        let mut cells = vec![title.to_owned()];
        cells.extend(rows.iter().map(|row| unit.text(&row[key])));
        let width = cells
            .iter()
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0);
        for (line, cell) in lines.iter_mut().zip(cells) {
            *line += &format!("{cell:>width$}  ");
        }
    }
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_they_hold() {
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
