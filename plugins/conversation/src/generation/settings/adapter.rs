//! The LoRA adapter of a request, as in llama.cpp's server: a list of adapters and their scales.

use corral_sdk::fields::{Fields, integer, out_of_range};
use corral_sdk::{Error, Model};

/// Reads llama.cpp's list of LoRA adapters: the id of the adapter that applies. An id counts the
/// model's adapters from 0.
pub fn read(fields: &mut Fields) -> Result<Option<u32>, Error> {
    let list = fields.path("lora");
    let Some(entries) = fields.list("lora")? else {
        return Ok(None);
    };
    let mut adapter = None;
    for (index, entry) in entries.into_iter().enumerate() {
        let path = format!("{list}[{index}]");
        let mut entry = Fields::at(path.clone(), entry)?;
        entry.reject_unknown(&["id", "scale"])?;
        let id = entry.required("id", "the number of an adapter")?;
        let id = integer(&format!("{path}.id"), &id, 0..=u32::MAX)?;
        let scale = entry.required("scale", "0 or 1")?;
        match scale.as_f64() {
            Some(0.0) => {}
            Some(1.0) if adapter.is_none() => adapter = Some(id),
            Some(1.0) => {
                let text =
                    format!("`{path}` is a second adapter with a scale of 1; expected at most one");
                return Err(Error::bad_request("unsupported", text).with_field(&list));
            }
            _ => {
                let expected = "0, or 1 to apply the adapter; other scales are not supported";
                return Err(out_of_range(&format!("{path}.scale"), &scale, expected));
            }
        }
    }
    Ok(adapter)
}

/// The name of an adapter of the model.
pub fn name(model: &Model, id: u32) -> Result<&str, Error> {
    let adapters = &model.info().adapters;
    adapters
        .get(id as usize)
        .map(String::as_str)
        .ok_or_else(|| {
            let expected = match adapters.len() {
                0 => "no `lora`, since the model has no adapters".to_owned(),
                count => format!("an id below {count}, for one of {adapters:?}"),
            };
            let text = format!("`lora` has the id {id}; expected {expected}");
            Error::bad_request("out-of-range", text).with_field("lora")
        })
}

#[cfg(test)]
mod tests {
    use super::super::tests::read;
    use corral_sdk::testing::{Script, check_field_errors};
    use corral_sdk::{Error, Model};
    use serde_json::{Value, json};

    /// Fields, and the field and text of their error.
    const ERRORS: &str = r#"
{"lora": 0} => lora: a number; expected a list
{"lora": [0]} => lora[0]: a number; expected an object
{"lora": [{"id": 0}]} => lora[0].scale: missing
{"lora": [{"scale": 1}]} => lora[0].id: missing
{"lora": [{"id": "plus-one", "scale": 1}]} => lora[0].id: a string; expected an integer
{"lora": [{"id": 0, "scale": 0.5}]} => lora[0].scale: other scales are not supported
{"lora": [{"id": 0, "scale": "1"}]} => lora[0].scale: 0, or 1
{"lora": [{"id": 0, "scale": 1}, {"id": 1, "scale": 1}]} => lora: a second adapter
"#;

    #[test]
    fn errors_name_the_field() {
        check_field_errors(ERRORS, read);
    }

    /// The last setting that reaches the host, of a model with these adapters.
    fn last_setting(adapters: &[&str], lora: Value) -> Result<String, Error> {
        let adapters: Vec<_> = adapters.iter().map(|&name| name.to_owned()).collect();
        let script = Script::new().answers("a", "b");
        let script = script.info(|info| info.adapters = adapters);
        let settings = read(json!({ "lora": lora }))?;
        script.run(async {
            let model = Model::open_default().await?;
            let sequence = model.sequence()?;
            sequence.append("a")?;
            sequence.generate(&settings.options(&model, 1, 0, None)?)?;
            Ok::<_, Error>(())
        })?;
        Ok(script.generations()[0].settings.last().cloned().unwrap())
    }

    #[test]
    fn adapter_is_selected_by_its_number() {
        let two = ["x", "y"];
        let y = json!([{"id": 0, "scale": 0}, {"id": 1, "scale": 1.0}]);
        assert_eq!(last_setting(&two, y).unwrap(), "adapter y");
        for none in [json!([]), json!([{"id": 1, "scale": 0}]), Value::Null] {
            assert_eq!(last_setting(&two, none).unwrap(), "temperature 1");
        }
        for (adapters, text) in [(&two[..], r#"["x", "y"]"#), (&[], "no adapters")] {
            let error = last_setting(adapters, json!([{"id": 2, "scale": 1}])).unwrap_err();
            assert_eq!(error.field(), Some("lora"));
            assert!(error.to_string().contains(text), "{error}");
        }
    }
}
