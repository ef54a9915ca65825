//! Embeddings requested by a plugin, over HTTP.

use corral_tests::Corral;

/// The vectors for a text of several lines.
fn embed(corral: &Corral, lines: &str) -> Vec<Vec<f64>> {
    let answer = corral.post("/misbehave/embed", lines);
    assert_eq!(answer.status, 200);
    answer
        .body
        .lines()
        .map(|line| {
            line.split(' ')
                .map(|number| number.parse().expect(number))
                .collect()
        })
        .collect()
}

fn product(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn plugin_gets_one_vector_per_text() {
    let corral = Corral::start();
    let vectors = embed(&corral, "the old fox\n12+7=\nthe old fox");
    assert_eq!(vectors.len(), 3);
    for vector in &vectors {
        assert!((product(vector, vector) - 1.0).abs() < 1e-3, "{vector:?}");
    }
    assert!(product(&vectors[0], &vectors[2]) > 0.999);
    assert!(product(&vectors[0], &vectors[1]) < 0.99);
    corral.check_alive();
    assert!(
        corral
            .wait_until_idle()
            .get("corral_engine_embedding_inputs_total")
            >= 3.0
    );
}

#[test]
fn empty_text_is_an_error() {
    let corral = Corral::start();
    let answer = corral.post("/misbehave/embed", "the old fox\n");
    assert_eq!(answer.status, 200);
    assert!(answer.body.contains("Invalid"), "{}", answer.body);
    corral.check_alive();
}
