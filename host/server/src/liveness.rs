//! Whether the engines make progress, for a watchdog.

use corral_engine::{Error, ModelPool};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout_at};

/// Pause before another attempt to ask an engine whose command queue is full.
const RETRY: Duration = Duration::from_millis(20);

/// Waits until the engine thread of each loaded model answers between two steps.
///
/// # Errors
/// A model whose engine has ended, or did not answer within `patience`.
pub(crate) async fn check_engines(models: &ModelPool, patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    let names: Vec<_> = models.names().map(str::to_owned).collect();
    for name in names {
        match timeout_at(until, engine_answers(models, &name)).await {
            Ok(true) => {}
            Ok(false) => return Err(format!("the model {name} has stopped")),
            Err(_) => {
                return Err(format!(
                    "a step of the model {name} takes longer than {} s",
                    patience.as_secs_f64()
                ));
            }
        }
    }
    Ok(())
}

/// Waits for the answer of a model's engine. True also if the model is not loaded; false if its engine has ended.
async fn engine_answers(models: &ModelPool, name: &str) -> bool {
    loop {
        let (sender, answer) = oneshot::channel();
        // Not held while waiting: an engine that is held stays loaded.
        let query = {
            let mut engines = models.engines().into_iter();
            let Some(engine) = engines.find(|engine| engine.info().name == name) else {
                return true;
            };
            engine.status(move |_| {
                // The receiver is gone after the timeout.
                let _ = sender.send(());
            })
        };
        if matches!(query, Err(Error::Overloaded { .. })) {
            sleep(RETRY).await;
            continue;
        }
        // An engine that is being unloaded drops the query, too.
        return answer.await.is_ok() || !has_stopped(models, name);
    }
}

fn has_stopped(models: &ModelPool, name: &str) -> bool {
    let statuses = models.status();
    statuses
        .iter()
        .any(|model| model.name == name && model.stopped)
}
