//! Which expressions are tensor products: by structure, whatever the names.

use super::{ONE, tensor};
use crate::support::gpu;
use crate::support::runs::finish;
use einsparse::Context;
use einsparse::ops::{Channels, Couplings, TensorProduct};

/// Every expression of the operation, and one written by hand over groups.
#[test]
fn plans_find_the_kernels() {
    let ctx = Context::cpu();
    let couplings = Couplings::natural(1).unwrap();
    let kinds = [
        (ONE, ["items", "items", "items", ""]),
        (
            Channels::Each(8),
            ["channels", "channels", "sums", "channels"],
        ),
        (
            Channels::Connected(8, 4),
            ["connected", "connected", "traces", "weights"],
        ),
        (
            Channels::ConnectedEach(8, 4),
            [
                "own_connected",
                "own_connected",
                "own_traces",
                "own_weights",
            ],
        ),
    ];
    for (channels, names) in kinds {
        let product = TensorProduct::<f32>::with_gradients(&ctx, &couplings, channels, 4).unwrap();
        for (plan, name) in product.plans().into_iter().zip(names) {
            let found = plan.map_or("", |p| p.choice().candidates[0].name);
            let wanted = format!("tensor_product_{name}_f32");
            assert!(found == wanted || name.is_empty(), "{channels:?} {found}");
        }
    }
    by_hand(&ctx);
    if let Some(ctx) = gpu() {
        by_hand(&ctx);
    }
}

/// Two groups of two slots, the last one padding.
fn by_hand(ctx: &Context) {
    let pad = einsparse::formats::PAD;
    let (r, s, t) = ([2, 0], [1, 2, 0, pad], [0, 3, 1, 2]);
    let text = "Z[n,R[g]] = V[g,h] * F[n,S[g,h]] * H[n,T[g,h]]";
    let v = tensor::<f32>(ctx, &[2, 2], &[1.0, 2.0, 3.0, f64::NAN]);
    let f = tensor::<f32>(ctx, &[1, 3], &[1.0, 2.0, 4.0]);
    let h = tensor::<f32>(ctx, &[1, 4], &[1.0, 3.0, 5.0, 7.0]);
    let mut z = tensor::<f32>(ctx, &[1, 3], &[9.0; 3]);
    let operands = [("V", (&v).into()), ("F", (&f).into()), ("H", (&h).into())];
    let mut planned = operands.to_vec();
    planned.push(("Z", (&z).into()));
    planned.extend([
        ("R", (&[2][..], &r[..]).into()),
        ("S", (&[2, 2][..], &s[..]).into()),
        ("T", (&[2, 2][..], &t[..]).into()),
    ]);
    let plan = ctx.plan(text).operands(&planned).build().unwrap();
    let found = plan.choice().candidates[0].name;
    assert_eq!(found, "tensor_product_items_f32");
    drop(planned);
    finish(ctx, |stream| plan.run(&operands, &mut z, stream));
    // 1 * 2 * 1 + 2 * 4 * 7 in row 2, 3 * 1 * 3 in row 0.
    assert_eq!(z.to_dense().unwrap().values(), [9.0, 0.0, 58.0]);
}
