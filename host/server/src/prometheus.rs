//! Families of metrics, and their text in the Prometheus format, version 0.0.4.
//!
//! The samples of a family stand together after its one `HELP` and one `TYPE` line. Label values escape
//! `\`, `"` and newlines.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use corral_engine::{Metric, MetricKind};
use std::fmt::Write;

/// `Content-Type` of the text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metric families in the order of their first sample.
#[derive(Debug, Default)]
pub(crate) struct MetricFamilies(Vec<MetricFamily>);

/// The samples of one metric.
#[derive(Debug)]
pub(crate) struct MetricFamily {
    pub(crate) name: String,
    pub(crate) help: String,
    pub(crate) kind: MetricKind,
    pub(crate) samples: Vec<MetricSample>,
}

/// One value of a metric.
#[derive(Debug)]
pub(crate) struct MetricSample {
    /// The family's name; for a histogram with the suffix of its series.
    pub(crate) name: String,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) value: f64,
}

impl MetricFamilies {
    /// Adds a metric of the engine or the runtime, with `labels` before its own.
    pub(crate) fn metric(&mut self, metric: &Metric, labels: &[(&str, &str)]) {
        let own = metric
            .labels
            .iter()
            .map(|(label, text)| (*label, text.as_str()));
        let labels: Vec<_> = labels.iter().copied().chain(own).collect();
        self.sample(metric.name, metric.help, metric.kind, &labels, metric.value);
    }

    /// Adds one sample.
    pub(crate) fn sample(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricKind,
        labels: &[(&str, &str)],
        value: f64,
    ) {
        // The samples of a histogram have suffixes of the family's name.
        let family_name = match kind {
            MetricKind::Histogram => name.rsplit_once('_').map_or(name, |(family, _)| family),
            MetricKind::Counter | MetricKind::Gauge => name,
        };
        let found = self.0.iter().position(|f| f.name == family_name);
        let at = match found {
            Some(at) => at,
            None => {
                self.0.push(MetricFamily {
                    name: family_name.to_owned(),
                    help: help.to_owned(),
                    kind,
                    samples: Vec::new(),
                });
                self.0.len() - 1
            }
        };
        let family = &mut self.0[at];
        debug_assert_eq!(family.kind, kind, "{name} is of one kind");
        let labels = labels.iter();
        let labels = labels.map(|(label, text)| ((*label).to_owned(), (*text).to_owned()));
        family.samples.push(MetricSample {
            name: name.to_owned(),
            labels: labels.collect(),
            value,
        });
    }

    /// All families.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &MetricFamily> {
        self.0.iter()
    }

    /// All families as text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for family in &self.0 {
            let (name, help) = (&family.name, escape(&family.help));
            let kind = match family.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            // Writing to a String cannot fail.
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
            for sample in &family.samples {
                sample.write(&mut text);
            }
        }
        text
    }
}

impl MetricSample {
    fn write(&self, line: &mut String) {
        line.push_str(&self.name);
        for (i, (label, text)) in self.labels.iter().enumerate() {
            line.push(if i == 0 { '{' } else { ',' });
            line.push_str(label);
            line.push_str("=\"");
            line.push_str(&escape(text).replace('"', "\\\""));
            line.push('"');
        }
        if !self.labels.is_empty() {
            line.push('}');
        }
        line.push(' ');
        write_value(line, self.value);
        line.push('\n');
    }
}

/// Escapes `\` and newlines.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n")
}

/// Writes a number. Rust and Prometheus write infinities differently.
fn write_value(out: &mut String, value: f64) {
    if value == f64::INFINITY {
        out.push_str("+Inf");
    } else if value == f64::NEG_INFINITY {
        out.push_str("-Inf");
    } else {
        // Writing to a String cannot fail.
        let _ = write!(out, "{value}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_family_stand_together() {
        let mut families = MetricFamilies::default();
        for model in ["a", "b"] {
            let labels = [("model", model)];
            families.sample(
                "steps_total",
                "Steps.",
                MetricKind::Counter,
                &labels,
                12345678901.0,
            );
            families.sample("rows", "Rows now.", MetricKind::Gauge, &labels, 0.5);
        }
        families.sample("up", "Is it up?", MetricKind::Gauge, &[], f64::INFINITY);
        assert_eq!(
            families.text(),
            "# HELP steps_total Steps.\n\
             # TYPE steps_total counter\n\
             steps_total{model=\"a\"} 12345678901\n\
             steps_total{model=\"b\"} 12345678901\n\
             # HELP rows Rows now.\n\
             # TYPE rows gauge\n\
             rows{model=\"a\"} 0.5\n\
             rows{model=\"b\"} 0.5\n\
             # HELP up Is it up?\n\
             # TYPE up gauge\n\
             up +Inf\n"
        );
    }

    #[test]
    fn help_and_labels_are_escaped() {
        let mut families = MetricFamilies::default();
        let labels = [("model", "a\"b\\c\nd"), ("plugin", "/é")];
        families.sample(
            "x",
            "one\ntwo \\ \"three\"",
            MetricKind::Gauge,
            &labels,
            -1.0,
        );
        assert_eq!(
            families.text(),
            "# HELP x one\\ntwo \\\\ \"three\"\n\
             # TYPE x gauge\n\
             x{model=\"a\\\"b\\\\c\\nd\",plugin=\"/é\"} -1\n"
        );
    }
}
