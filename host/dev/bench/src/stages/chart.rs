//! A chart with a bar for the ratio of each stage to its raw loop, with minimum and maximum.

use corral_cli::Cause;
use plotters::prelude::*;
use serde_json::Value;

/// Pixels of the image, of its margins, and of a bar.
const WIDTH: u32 = 900;
const MARGINS: u32 = 110;
const BAR: u32 = 44;

/// Draws the rows of the report as SVG.
pub(super) fn svg(title: &str, rows: &[Value]) -> Result<String, Cause> {
    let bars: Vec<_> = rows.iter().map(Bar::of).collect();
    let count = u32::try_from(bars.len()).unwrap_or(u32::MAX).max(1);
    let height = count.saturating_mul(BAR).saturating_add(MARGINS);
    let max = bars.iter().map(|bar| bar.max).fold(1.0, f64::max);
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(44)
            // From the top down.
            .build_cartesian_2d(0.0..max * 1.05, f64::from(count)..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .x_desc("throughput as a fraction of the raw loop's")
            .draw()?;
        let bars_at = || {
            bars.iter()
                .zip(0_u32..)
                .map(|(bar, at)| (bar, f64::from(at)))
        };
        chart.draw_series(bars_at().map(|(bar, at)| {
            let corners = [(0.0, at + 0.15), (bar.ratio, at + 0.85)];
            Rectangle::new(corners, BLUE.mix(0.3).filled())
        }))?;
        chart.draw_series(bars_at().map(|(bar, at)| {
            let line = vec![(bar.min, at + 0.5), (bar.max, at + 0.5)];
            PathElement::new(line, BLUE.stroke_width(2))
        }))?;
        chart.draw_series(bars_at().map(|(bar, at)| {
            let corner = (max * 0.01, at + 0.3);
            Text::new(bar.label.clone(), corner, ("sans-serif", 14).into_font())
        }))?;
        root.present()?;
    }
    Ok(text)
}

struct Bar {
    label: String,
    ratio: f64,
    min: f64,
    max: f64,
}

impl Bar {
    fn of(row: &Value) -> Self {
        let number = |key: &str| row[key].as_f64().unwrap_or(0.0);
        let ratio = number("ratio");
        let name = row["name"].as_str().unwrap_or_default();
        Self {
            label: format!("{} {name}: {ratio:.3}", row["stage"]),
            ratio,
            min: number("ratio_min"),
            max: number("ratio_max"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::svg;
    use serde_json::json;

    #[test]
    fn each_stage_has_a_bar() {
        let row = |stage: u8, name: &str| json!({"stage": stage, "name": name, "ratio": 0.5, "ratio_min": 0.4, "ratio_max": 1.2});
        let rows = [row(0, "raw"), row(7, "HTTP & all")];
        let text = svg("a title", &rows).expect("a chart");
        assert!(text.starts_with("<svg"), "{text}");
        assert!(text.trim_end().ends_with("</svg>"), "{text}");
        for expected in ["a title", "0 raw: 0.500", "7 HTTP &amp; all: 0.500"] {
            assert!(text.contains(expected), "{expected} in {text}");
        }
        assert!(svg("nothing", &[]).is_ok());
    }
}
