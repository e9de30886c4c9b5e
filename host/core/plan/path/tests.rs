//! Tests of results and costs of CPU paths.

use einsparse_formats::{Csr, CsrPattern, Dense};

use super::*;
use crate::indirect::rewrite_dense;
use crate::offer::{Expression, Run};
use crate::tensor::Tensor;

fn integers(rows: usize, columns: usize) -> Dense<f64> {
    let value = |i: &[usize]| ((i[0] * 7 + i[1] * 3) % 5) as f64 - 2.0;
    Dense::from_fn([rows, columns], value).unwrap()
}

fn upload(ctx: &Context, shapes: &[[usize; 2]]) -> Vec<Tensor<f64>> {
    let one = |&[rows, columns]: &[usize; 2]| ctx.upload_dense(&integers(rows, columns)).unwrap();
    shapes.iter().map(one).collect()
}

fn path_of(text: &str, operands: &[(&str, Operand<'_, f64>)]) -> Found {
    let einsum = Einsum::parse(text).unwrap();
    let operands = erase(operands);
    let shapes = operands.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec()));
    let extents = einsum.check(&shapes.collect()).unwrap();
    let (context, options) = (&Context::cpu(), &Options::default());
    let types = Types::of::<f64, f64>();
    let source = Source { types, context, einsum: &einsum, operands: &operands, options };
    let found = found(&source, &extents, (Dtype::F64, Place::Cpu, false)).unwrap();
    found.unwrap_or_else(|none| panic!("{text}: {}", none.reason))
}

fn run(ctx: &Context, text: &str, operands: &[(&str, Operand<'_, f64>)]) -> (String, Dense<f64>) {
    let plan = ctx.plan(text).operands(operands).build().unwrap();
    let mut out = ctx.zeros(plan.out_shape()).unwrap();
    plan.run(operands, &mut out, &ctx.stream().unwrap()).unwrap();
    (plan.to_string(), out.to_dense().unwrap())
}

#[test]
fn three_matrices_cost_two_products_of_matrices() {
    const N: usize = 300;
    let ctx = Context::cpu();
    let own = upload(&ctx, &[[N, N], [N, N], [N, N]]);
    let operands = [("A", (&own[0]).into()), ("B", (&own[1]).into()), ("C", (&own[2]).into())];
    let text = "Y[i,l] = A[i,j] * B[j,k] * C[k,l]";
    let found = path_of(text, &operands);
    let flops: f64 = found.path.steps.iter().map(|step| step.flops).sum();
    assert_eq!(flops, 2.0 * 2.0 * (N as f64).powi(3));
    assert!(found.path.us() * 100.0 < found.whole_us);
    let (words, y) = run(&ctx, text, &operands);
    assert!(
        words.contains("\n  P0[i,k] = A[i,j] * B[j,k]\n  Y[i,l] = P0[i,k] * C[k,l]"),
        "{words}"
    );
    let (_, p) = run(&ctx, "P[i,k] = A[i,j] * B[j,k]", &operands[..2]);
    let p = ctx.upload_dense(&p).unwrap();
    let (_, wanted) =
        run(&ctx, "Y[i,l] = P[i,k] * C[k,l]", &[("P", (&p).into()), operands[2].clone()]);
    assert_eq!(y, wanted);
}

#[test]
fn sixty_matrices_cost_as_many_products() {
    let ctx = Context::cpu();
    let rotation = Dense::from_fn([3, 3], |i| f64::from((i[0] + 1) % 3 == i[1])).unwrap();
    let own: Vec<_> = (0..60).map(|_| ctx.upload_dense(&rotation).unwrap()).collect();
    let names: Vec<String> = (0..60).map(|at| format!("M{at}")).collect();
    let factor = |at: usize| format!("M{at}[i{at},i{}]", at + 1);
    let factors: Vec<String> = (0..60).map(factor).collect();
    let text = format!("Y[i0,i60] = {}", factors.join(" * "));
    let operands: Vec<_> = names.iter().zip(&own).map(|(n, t)| (n.as_str(), t.into())).collect();
    let path = path_of(&text, &operands).path;
    let flops: f64 = path.steps.iter().map(|step| step.flops).sum();
    assert_eq!((path.steps.len(), flops), (59, 59.0 * 2.0 * 27.0));
    // Twenty full rotations: the product is the identity.
    let (_, y) = run(&ctx, &text, &operands);
    assert_eq!(y, Dense::from_fn([3, 3], |i| f64::from(i[0] == i[1])).unwrap());
}

/// Checks that GPU steps, run on the CPU as separate plans, give the result of a CPU plan.
fn agrees(text: &str, [m, k, l, n]: [usize; 4], wanted: &str) {
    let ctx = Context::cpu();
    let offsets = (0..=m as u32).map(|row| row * 2).collect();
    let columns = (0..m).flat_map(|r| [(r % (k - 1)) as u32, k as u32 - 1]);
    let pattern = CsrPattern::new(m, k, offsets, columns.collect()).unwrap();
    let values = (0..2 * m).map(|v| (v % 5) as f64 - 1.0).collect();
    let a = ctx.upload(Csr::new(pattern, values).unwrap()).unwrap();
    let own = upload(&ctx, &[[k, l], [l, n], [m, n]]);
    let bias = ctx.upload_dense(&Dense::from_fn([n], |_| 1.0).unwrap()).unwrap();
    let mut operands: Vec<(&str, Operand<'_, f64>)> =
        vec![("A", (&a).into()), ("B", (&own[0]).into()), ("C", (&own[1]).into())];
    if text.contains("bias") {
        operands.push(("bias", (&bias).into()));
    }
    let erased = erase(&operands);
    let einsum = Einsum::parse(text).unwrap();
    let shapes = erased.iter().map(|(name, o)| (name.to_string(), o.shape().to_vec()));
    let extents = einsum.check(&shapes.collect()).unwrap();
    let (types, options) = (Types::of::<f64, f64>(), &Options::default());
    let source = Source { types, context: &ctx, einsum: &einsum, operands: &erased, options };
    let found = on_gpu(&source, &extents).unwrap();
    let path = found.ok().unwrap().path;
    assert_eq!(path.steps[0].einsum.to_string(), wanted);
    let chain = Chain::new(&source, path).unwrap();
    assert!(chain.to_string().contains(wanted), "{chain}");
    assert!(crate::offer::Executable::bytes(&chain) > 0);
    let plan = ctx.plan(text).operands(&operands).build().unwrap();
    let stream = ctx.stream().unwrap();
    let [mut one, mut other] = [(); 2].map(|()| ctx.upload_dense(&integers(m, n)).unwrap());
    plan.run(&operands, &mut one, &stream).unwrap();
    let indirect = rewrite_dense(&einsum).unwrap();
    let of = &Expression::new(&source, indirect, extents.out()).unwrap();
    let operands = &of.slots(erased.iter().copied(), extents.out()).unwrap();
    chain.queue(&Run { of, operands, stream: &stream }, &mut other.any).unwrap();
    assert_eq!(one.to_dense().unwrap(), other.to_dense().unwrap(), "{chain}");
}

#[test]
fn steps_give_what_the_whole_gives() {
    let text = "Y[m,n] = A[m,k] * B[k,l] * C[l,n]";
    // With few rows, the product with A comes first. With many rows and a narrow result, the dense product does.
    agrees(text, [2, 60, 50, 40], "P0[m,l] = A[m,k] * B[k,l]");
    agrees(text, [900, 6, 200, 3], "P0[k,n] = B[k,l] * C[l,n]");
    let text = "Y[m,n] += relu(2 * A[m,k] * B[k,l] * C[l,n] + bias[n])";
    agrees(text, [2, 60, 50, 40], "P0[m,l] = A[m,k] * B[k,l]");
}

#[test]
fn intermediate_results_have_a_limit() {
    let ctx = Context::cpu();
    let own = upload(&ctx, &[[400, 400]]);
    // Two factors that share an index have a result of three indices.
    let text = "Y[] = A[i,j] * B[i,k] * C[i,l] * D[j,k] * E[j,l] * F[k,l]";
    let operands = ["A", "B", "C", "D", "E", "F"].map(|name| (name, Operand::from(&own[0])));
    let options = Options { variant: Some(NAME.into()), ..Options::default() };
    let error = ctx.plan(text).operands(&operands).options(&options).build().unwrap_err();
    let error = error.to_string();
    for words in
        ["64000000 elements", "= 400, ", "512000000 bytes", "each of them", "EINSPARSE_MEMORY"]
    {
        assert!(error.contains(words), "{error}");
    }
    // One loop over all factors stores no intermediate results.
    assert_eq!(ctx.contraction_path(text, &operands).unwrap(), None);
    // Six indices of extent 1,000 have too many products.
    let own = ctx.zeros::<f64>(&[1000, 1000]).unwrap();
    let names = ["i", "j", "k", "l", "m", "n"];
    let pairs = (0..6).flat_map(|b| (0..b).map(move |a| format!("A[{},{}]", names[a], names[b])));
    let text = format!("Y[] = {}", pairs.collect::<Vec<_>>().join(" * "));
    let error = ctx.contraction_path(&text, &[("A", (&own).into())]).unwrap_err();
    assert!(matches!(error, Error::NoKernel { .. }), "{error}");
    assert!(error.to_string().contains("= 1000, "), "{error}");
}

#[test]
fn two_factors_leave_no_choice() {
    let ctx = Context::cpu();
    let own = upload(&ctx, &[[3, 4], [4, 2]]);
    let operands = [("B", (&own[0]).into()), ("C", (&own[1]).into())];
    let found = ctx.contraction_path("Y[k,n] = B[k,l] * C[l,n]", &operands).unwrap();
    assert_eq!(found, None);
}
