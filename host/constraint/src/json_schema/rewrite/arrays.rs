//! `contains` and `uniqueItems`, expressed by the items at each place.

use super::super::negate::{self, Context, any_of, listed_values};
use super::{Outcome, Rewriter, size};
use crate::limits;
use serde_json::{Map, Value, json};

impl Rewriter<'_> {
    pub(super) fn contains(
        &mut self,
        object: &Map<String, Value>,
        value: &Value,
        context: &Context<'_>,
    ) -> Outcome {
        let least = object
            .get("minContains")
            .and_then(Value::as_u64)
            .unwrap_or(1);
        if least == 0 {
            return Outcome::Omit;
        }
        let items = most_items(context).filter(|&items| {
            let bytes = size(value).saturating_mul(items as usize);
            least == 1 && bytes <= self.bytes && items <= limits::MAX_ALTERNATIVES as u64
        });
        let part = items.map(|items| {
            let mut options = not_arrays(context);
            options.extend((0..items as usize).map(|before| {
                let mut first = vec![Value::Bool(true); before];
                first.push(value.clone());
                json!({ "type": "array", "items": first, "minItems": before + 1 })
            }));
            any_of(options)
        });
        self.express(part, context, || {
            "the keyword contains is supported only with a small maxItems and without minContains"
                .into()
        })
    }

    pub(super) fn unique_items(
        &mut self,
        object: &Map<String, Value>,
        context: &Context<'_>,
    ) -> Outcome {
        let most = most_items(context);
        if most.is_some_and(|most| most <= 1) {
            return Outcome::Omit;
        }
        let is_plain = !["prefixItems", "additionalItems"]
            .iter()
            .any(|keyword| object.contains_key(*keyword));
        let values = object.get("items").filter(|_| is_plain);
        let values = values.and_then(|items| few_values(self.root, items));
        let part = values.and_then(|values| {
            let most = most.map_or(values.len(), |most| values.len().min(most as usize));
            let mut options = not_arrays(context);
            for items in arrangements(&values, most)? {
                options.push(json!({ "type": "array", "items": items, "additionalItems": false }));
            }
            Some(any_of(options))
        });
        // The alternatives are small, and no others are multiplied with them often.
        let around = self.alternatives;
        self.alternatives = 1;
        let outcome = match part {
            Some(part) if size(&part) <= self.bytes && around == 1 => {
                self.bytes -= size(&part);
                Outcome::Express(part)
            }
            _ => Outcome::Ignore(
                "the keyword uniqueItems is supported only for items of a few constants, or with \
                 maxItems of at most 1"
                    .into(),
            ),
        };
        self.alternatives = around;
        outcome
    }
}

/// The types other than arrays, if the value may have one.
fn not_arrays(context: &Context<'_>) -> Vec<Value> {
    let mut others = negate::types(context).unwrap_or(negate::TYPES.to_vec());
    others.retain(|one| *one != "array");
    match others.is_empty() {
        true => Vec::new(),
        false => vec![json!({ "type": others })],
    }
}

fn most_items(context: &Context<'_>) -> Option<u64> {
    let limits = context.iter().filter_map(|schema| schema.get("maxItems"));
    limits.filter_map(Value::as_u64).min()
}

/// The values of a schema that lists them; perhaps some more that the schema refuses.
fn few_values(root: &Value, schema: &Value) -> Option<Vec<Value>> {
    let object = schema.as_object()?;
    let context = negate::extend(root, &[], object);
    let listed = context.iter().find_map(|schema| listed_values(schema));
    let mut values = Vec::new();
    if let Some(listed) = listed {
        if listed.len() > limits::MAX_ALTERNATIVES {
            return None;
        }
        for value in listed {
            if !values.iter().any(|known| negate::equal(known, value)) {
                values.push(value.clone());
            }
        }
        return Some(values);
    }
    for one in negate::types(&context)? {
        match one {
            "null" => values.push(Value::Null),
            "boolean" => values.extend([true, false].map(Value::Bool)),
            _ => return None,
        }
    }
    Some(values)
}

/// All sequences of this many different values; `None` if they are too many.
fn arrangements(values: &[Value], length: usize) -> Option<Vec<Vec<Value>>> {
    let count = (values.len() - length + 1..=values.len()).try_fold(length, usize::checked_mul);
    if count? > limits::MAX_ARRANGED_ITEMS {
        return None;
    }
    let mut found: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..length {
        let longer = found.iter().flat_map(|start| {
            let unused = (0..values.len()).filter(|index| !start.contains(index));
            unused.map(|index| [&start[..], &[index]].concat())
        });
        found = longer.collect();
    }
    let found = found.into_iter().map(|order| {
        order
            .into_iter()
            .map(|index| json!({ "const": values[index] }))
            .collect()
    });
    Some(found.collect())
}
