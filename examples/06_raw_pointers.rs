//! A plan run on raw device addresses and a raw stream, as other CUDA crates have them. Requires a GPU.

use einsparse::Context;
use einsparse::formats::{Csr, Dense, generate, reference};
use einsparse::raw::{DeviceMemory, RawSpmm};

fn main() -> einsparse::Result<()> {
    let ctx = Context::new();
    let Some(device) = ctx.device() else {
        println!("skipped: no GPU (`einsparse doctor` says what is missing)");
        return Ok(());
    };
    let pattern = generate::uniform(256, 128, 0.1, 1)?;
    let values = generate::small_integers::<f32>(pattern.columns().len(), 2);
    let a = Csr::new(pattern, values)?;
    let b = Dense::new(vec![128, 64], generate::small_integers::<f32>(128 * 64, 3))?;

    // The plan stores pattern, shapes and alignment. Here it takes them from these operands.
    let (planned_a, planned_b) = (ctx.upload(&a)?, ctx.upload_dense(&b)?);
    let operands = [("A", (&planned_a).into()), ("B", (&planned_b).into())];
    let plan = ctx.plan::<f32>("C[m,n] = A[m,k] * B[k,n]").operands(&operands).build()?;

    // Memory and a stream of another library: both must belong to the device's primary context.
    let stream = ctx.stream()?;
    let context = device.context();
    // Kernels load whole vectors, so the arrays of A must be readable 8 slots past their end.
    let padded = [a.pattern().columns(), &[0; 8]].concat();
    let columns = DeviceMemory::from_slice(context, &padded, stream.raw())?;
    let padded = [a.values(), &[0.0; 8]].concat();
    let values = DeviceMemory::from_slice(context, &padded, stream.raw())?;
    let rhs = DeviceMemory::from_slice(context, b.values(), stream.raw())?;
    let out = DeviceMemory::alloc(context, 256 * 64 * 4)?;
    let raw = RawSpmm::default()
        .columns(columns.address())
        .values(values.address())
        .b(rhs.address())
        .ldb(64)
        .c(out.address())
        .ldc(64);
    // SAFETY: the addresses point to operands of the planned shapes, type and pattern, in the primary context of the
    // plan's GPU. They stay valid until the synchronization below.
    unsafe { plan.run_raw(&raw, stream.raw())? };
    stream.synchronize()?;

    let mut c = vec![0.0f32; 256 * 64];
    out.read(&mut c, stream.raw())?;
    let exact = reference::spmm(&a.into(), &b)?;
    assert!(c.iter().zip(exact.values()).all(|(c, e)| f64::from(*c) == *e));
    println!("{}: exact on raw pointers", plan.variant());
    Ok(())
}
