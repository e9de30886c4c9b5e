//! Detection of tensor products: by structure, whatever the names.

use super::{ONE, tensor};
use crate::support::gpu;
use crate::support::runs::finish;
use einsparse::einsum::Einsum;
use einsparse::ops::{Channels, Couplings, TensorProduct};
use einsparse::{Context, Operand};

/// Every expression of the operation, and one over groups that is written by hand.
#[test]
fn plans_find_the_kernels() {
    let ctx = Context::unchecked_cpu();
    let couplings = Couplings::natural(1).unwrap();
    let kinds = [
        (ONE, ["items", "items", "items", ""]),
        (Channels::Each(8), ["channels", "channels", "sums", "channels"]),
        (Channels::Connected(8, 4), ["connected", "connected", "traces", "weights"]),
        (
            Channels::ConnectedEach(8, 4),
            ["own_connected", "own_connected", "own_traces", "own_weights"],
        ),
    ];
    let (paths, components) = (couplings.path_of_row(), couplings.component_of_row());
    let coefficients = ctx.upload(couplings.tensor::<f32>().unwrap()).unwrap();
    for (channels, names) in kinds {
        let product = TensorProduct::<f32>::new(&ctx, &couplings, channels, 4).unwrap();
        let zeros = |shape: &[usize]| ctx.zeros::<f32>(shape).unwrap();
        let [x, y, w, g] = [
            zeros(product.x_shape()),
            zeros(product.y_shape()),
            zeros(product.w_shape()),
            zeros(product.out_shape()),
        ];
        let rows = [couplings.rows()];
        let all = || {
            vec![
                ("CG", (&coefficients).into()),
                ("X", (&x).into()),
                ("Y", (&y).into()),
                ("W", (&w).into()),
                ("dOut", (&g).into()),
                ("Out", (&g).into()),
                ("dX", (&x).into()),
                ("dY", (&y).into()),
                ("dW", (&w).into()),
                ("L", (&rows[..], &paths[..]).into()),
                ("K", (&rows[..], &components[..]).into()),
            ]
        };
        let product = Einsum::parse(channels.expression()).unwrap();
        let gradients = ["X", "Y", "W"].map(|name| product.gradient(name).ok());
        let gradients = gradients.map(|gradient| gradient.map(|gradient| gradient.to_string()));
        let lines = [Some(product.to_string())].into_iter().chain(gradients);
        for (line, name) in lines.zip(names) {
            let Some(line) = &line else { continue };
            let named = |name: &str| {
                let mut words = line.split(|c: char| !c.is_alphanumeric());
                words.any(|word| word == name)
            };
            let mut own: Vec<(&str, Operand<'_, f32>)> = all();
            own.retain(|(name, _)| named(name));
            let plan = ctx.plan(line).operands(&own).build().unwrap();
            let found = plan.choice().candidates[0].name;
            assert_eq!(found, format!("tensor_product_{name}_f32"), "{channels:?}");
        }
    }
    by_hand(&ctx);
    if let Some(ctx) = gpu() {
        by_hand(&ctx);
    }
}

/// Two groups of two slots, the last one with a value of 0.
fn by_hand(ctx: &Context) {
    let (r, s, t) = ([2, 0], [1, 2, 0, 1], [0, 3, 1, 2]);
    let text = "Z[n,R[g]] = V[g,h] * F[n,S[g,h]] * H[n,T[g,h]]";
    let v = tensor::<f32>(ctx, &[2, 2], &[1.0, 2.0, 3.0, 0.0]);
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
