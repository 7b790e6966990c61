import jax.numpy as jnp
import numpy as np
import tiny_vlm

from vlrl.models import layers, vlm


def normal(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_dense_adds_the_scaled_adapter_where_the_collection_holds_it():
    x, kernel, bias, a, b = normal(0, 2, 3, 4), normal(1, 4, 5), normal(2, 5), normal(3, 4, 2), normal(4, 2, 5)
    dense = layers.Dense(5, use_bias=True, lora_scale=0.5)
    params = {"kernel": kernel, "bias": bias}
    np.testing.assert_allclose(dense.apply({"params": params}, x), x @ kernel + bias, rtol=1e-5, atol=1e-6)
    actual = dense.apply({"params": params, "lora": {"a": a, "b": b}}, x)
    np.testing.assert_allclose(actual, x @ (kernel + 0.5 * a @ b) + bias, rtol=1e-5, atol=1e-5)


def test_rms_norm_divides_by_the_root_mean_square():
    # mean of squares of (3, 4) is 12.5; eps 3.5 makes the root 4
    actual = layers.RMSNorm(eps=3.5).apply({"params": {"scale": jnp.array([1.0, 10.0])}}, jnp.array([[3.0, 4.0]]))
    np.testing.assert_allclose(actual, [[0.75, 10.0]], rtol=1e-6)


def test_rms_norm_of_bfloat16_is_computed_in_float32():
    x = jnp.full((1, 3000), 0.1, jnp.bfloat16).at[0, 0].set(30.0)
    norm = layers.RMSNorm(eps=0.0, dtype=jnp.dtype("bfloat16"))
    actual = norm.apply({"params": {"scale": jnp.ones(3000)}}, x).astype(jnp.float32)
    wide = np.asarray(x.astype(jnp.float32))
    np.testing.assert_allclose(actual, wide / np.sqrt(np.mean(wide**2)), rtol=2**-8)


def test_each_frequency_turns_with_the_axis_of_its_section():
    positions = np.array([[[5], [7], [11]]])  # time, row, column of one token
    angles = layers.mrope_angles(positions, 8, (1, 1, 2), 16.0)
    # frequencies 16 ** -(0, 1/4, 2/4, 3/4)
    np.testing.assert_allclose(angles[0, 0], [5 * 1, 7 / 2, 11 / 4, 11 / 8], rtol=1e-6)


def test_vision_angles_are_rows_then_columns():
    angles = layers.axial_angles(np.array([[[[3, 5]]]]), 8)
    np.testing.assert_allclose(angles[0, 0, 0], [3, 0.03, 5, 0.05], rtol=1e-6)


def test_rotation_is_a_complex_turn_and_keeps_distances():
    x, angles = normal(0, 2, 3, 16), normal(1, 2, 3, 8)
    turned = (x[..., :8] + 1j * x[..., 8:]) * np.exp(1j * angles)
    actual = layers.rotate(x, angles)
    np.testing.assert_allclose(actual, np.concatenate([turned.real, turned.imag], -1), atol=1e-6)


def test_query_key_product_depends_on_the_distance_only():
    q, k = normal(0, 1, 1, 16), normal(1, 1, 1, 16)

    def product(at, of):
        angle = [layers.mrope_angles(np.full((1, 3, 1), n), 16, (2, 3, 3), 1e4) for n in (at, of)]
        return np.sum(layers.rotate(q, angle[0]) * layers.rotate(k, angle[1]))

    np.testing.assert_allclose(product(9, 4), product(1009, 1004), rtol=2e-4)


def test_bfloat16_model_is_close_to_float32():
    cfg = tiny_vlm.CFG
    params = tiny_vlm.random_params(cfg)
    video = tiny_vlm.media(cfg, "video", (16, 24), frames=4, second_per_grid=0.5)
    rows = [tiny_vlm.row(cfg, tiny_vlm.text(1, 2), video, tiny_vlm.text(3, 4, 5))]
    prefix = tiny_vlm.collate(cfg, rows, 20, slices=2, patches=24)
    logits = []
    for dtype in (jnp.dtype("float32"), jnp.dtype("bfloat16")):
        model = vlm.Vlm(cfg, dtype)
        features = tiny_vlm.encode(model, params, prefix.vision)
        assert features.dtype == dtype
        kept = tiny_vlm.prefill(model, {"params": params}, prefix, features)
        logits.append(vlm.next_logits(model, {"params": params}, kept.last_hidden))
        assert logits[-1].dtype == jnp.float32
    error = np.linalg.norm(logits[1] - logits[0]) / np.linalg.norm(logits[0])
    print(f"bfloat16 against float32: relative {error:.1e}")
    assert error < 3e-2
