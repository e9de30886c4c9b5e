//! Memory and streams of the crate `cudarc` in products of einsparse, and the reverse.

use crate::support::assert_error;
use crate::support::gpu;
use cudarc::driver::CudaContext;
use einsparse::formats::{Csr, Dense, generate, reference};
use einsparse::{Context, Error, Stream, Tensor};

const TEXT: &str = "C[m,n] = A[m,k] * B[k,n]";

#[test]
fn slices_of_cudarc_are_operands_and_outputs() {
    let Some(gpu) = gpu() else { return };
    let ordinal = gpu.device().unwrap().facts().ordinal;
    let theirs = CudaContext::new(ordinal as usize).unwrap();
    let ours = Context::from_cudarc(&theirs).unwrap();
    let pattern = generate::uniform(200, 96, 0.1, 1).unwrap();
    let values = generate::small_integers::<f32>(pattern.columns().len(), 2);
    let matrix = Csr::new(pattern, values).unwrap();
    let b = Dense::new([96, 64], generate::small_integers::<f32>(96 * 64, 3)).unwrap();
    let exact = reference::spmm(&matrix.clone().into(), &b).unwrap();
    let exact: Vec<f32> = exact.values().iter().map(|x| *x as f32).collect();

    // With a second stream, cudarc starts to track readers and writers.
    let stream = theirs.new_stream().unwrap();
    let queue = Stream::from_cudarc(&stream);
    let a = ours.upload(&matrix).unwrap();
    let mut slice = theirs.default_stream().clone_htod(b.values()).unwrap();
    let mut out = stream.alloc_zeros::<f32>(200 * 64).unwrap();
    {
        // SAFETY: both slices are used on `stream` only, and dropped below.
        let b = unsafe { Tensor::borrow_cudarc(&ours, &slice, &[96, 64], &stream) }.unwrap();
        // SAFETY: both slices are used on `stream` only, and dropped below.
        let mut c =
            unsafe { Tensor::borrow_cudarc_mut(&ours, &mut out, &[200, 64], &stream) }.unwrap();
        let operands = [("A", (&a).into()), ("B", (&*b).into())];
        let plan = ours.plan(TEXT).operands(&operands).build().unwrap();
        plan.run(&operands, &mut *c, &queue).unwrap();
    }
    assert_eq!(theirs.default_stream().clone_dtoh(&out).unwrap(), exact);
    queue.synchronize().unwrap();

    // The slice is converted to a tensor, changed, and converted back.
    let mut tensor = Tensor::from_cudarc(&ours, slice, &[96, 64]).unwrap();
    assert_eq!(tensor.to_dense().unwrap(), b);
    tensor.write(&b.map(|x: f32| x + 1.0)).unwrap();
    slice = tensor.into_cudarc().unwrap();
    let changed: Vec<f32> = b.values().iter().map(|x| x + 1.0).collect();
    assert_eq!(stream.clone_dtoh(&slice).unwrap(), changed);

    // A part of a slice.
    let part = slice.slice(64..192);
    // SAFETY: the slice is read after the wait of `to_dense`.
    let part = unsafe { Tensor::borrow_cudarc(&ours, &part, &[2, 64], &stream) }.unwrap();
    assert_eq!(part.to_dense().unwrap().values(), &changed[64..192]);
    drop(part);

    let refused = |context: &Context, shape: &[usize]| {
        // SAFETY: no work is queued on the slice.
        let lent = unsafe { Tensor::borrow_cudarc(context, &slice, shape, &stream) };
        lent.map(drop).expect_err("an error")
    };
    assert!(matches!(refused(&ours, &[96, 63]), Error::Shape { .. }));
    let gpu = format!("GPU {ordinal}");
    let elsewhere = refused(&Context::cpu(), &[96, 64]);
    assert_error!(elsewhere, Error::OtherContext { found, .. } if *found == gpu);
    let own = ours.zeros::<f32>(&[2, 2]).unwrap();
    assert!(own.into_cudarc().is_err());
}
