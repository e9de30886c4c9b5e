//! DLPack on the host: an exported tensor is imported unchanged, and an unsupported one is refused with its numbers.

use crate::support::assert_error;
use dlpark::ffi::{DLDataType, DLDevice, DLManagedTensor, DLTensor};
use dlpark::{Managed, ManagedTensorBase, legacy, versioned};
use einsparse::formats::{Csr, Dense, generate};
use einsparse::{Context, Error, Tensor, einsum};

fn counted(rows: usize, columns: usize) -> Tensor<f32> {
    let dense = Dense::from_fn([rows, columns], |i| (i[0] * columns + i[1]) as f32).unwrap();
    Context::cpu().upload_dense(&dense).unwrap()
}

/// A tensor of 3 x 4 numbers as another library exports it, with one change.
fn other(change: impl FnOnce(&mut DLTensor)) -> legacy::Dlpack {
    let given: legacy::Dlpack = counted(3, 4).into_dlpack().unwrap();
    // SAFETY: this test owns the header, and no other code reads it.
    change(unsafe { (*given.as_ptr()).tensor_mut() });
    given
}

fn taken<M: ManagedTensorBase + 'static>(given: Managed<M>) -> einsparse::Result<Tensor<f32>> {
    // SAFETY: this test owns the tensor. A change makes it smaller than its memory, or makes it one that is refused.
    unsafe { Tensor::from_dlpack(&Context::cpu(), given) }
}

#[test]
fn tensors_go_out_and_come_back_without_a_copy() {
    let given: versioned::Dlpack = counted(3, 4).into_dlpack().unwrap();
    let view = given.validate().unwrap();
    assert_eq!((view.shape(), view.strides()), (&[3, 4][..], Some(&[4, 1][..])));
    assert_eq!((view.device(), view.dtype()), (DLDevice::CPU, DLDataType::F32));
    let place = view.data_ptr();
    let back = taken(given).unwrap();
    assert_eq!(back.to_dense().unwrap(), counted(3, 4).to_dense().unwrap());
    let again: versioned::Dlpack = back.into_dlpack().unwrap();
    assert_eq!(again.validate().unwrap().data_ptr(), place);
}

#[test]
fn foreign_tensors_are_operands_and_outputs() {
    let ctx = Context::cpu();
    let a = Csr::new(generate::uniform(8, 3, 0.5, 1).unwrap(), vec![2.0f32; 12]).unwrap();
    let (own, foreign) = (counted(3, 4), taken(other(|_| ())).unwrap());
    let text = "C[m,n] = A[m,k] * B[k,n]";
    let wanted = einsum!(ctx, text, A = &a, B = &own).unwrap();
    let a = ctx.upload(&a).unwrap();
    let operands = [("A", (&a).into()), ("B", (&foreign).into())];
    let plan = ctx.plan(text).operands(&operands).build().unwrap();
    let out: legacy::Dlpack = ctx.zeros::<f32>(&[8, 4]).unwrap().into_dlpack().unwrap();
    let mut out = taken(out).unwrap();
    plan.run(&operands, &mut out, &ctx.stream().unwrap()).unwrap();
    assert_eq!(out.to_dense().unwrap(), wanted.to_dense().unwrap());
}

#[test]
fn parts_of_tensors_are_read_by_their_strides() {
    // Columns 1 and 2.
    let part = other(|of| {
        // SAFETY: the shape has two extents, and this test owns the header.
        unsafe { *of.shape.add(1) = 2 };
        of.byte_offset = 4;
    });
    let part = taken(part).unwrap();
    assert_eq!((part.shape(), part.leading()), (&[3, 2][..], 4));
    assert_eq!(part.to_dense().unwrap().values(), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
    // Without strides, DLPack defines the tensor as compact.
    let compact = taken(other(|of| of.strides = std::ptr::null_mut())).unwrap();
    assert_eq!(compact.leading(), 4);
}

#[test]
fn what_does_not_fit_is_refused_with_its_numbers() {
    type Change = fn(&mut DLTensor);
    let elsewhere: [(&str, Change); 2] = [
        ("CUDA device 3", |of| of.device = DLDevice::cuda(3)),
        ("device 0 of type 8", |of| of.device = DLDevice::metal(0)),
    ];
    for (place, change) in elsewhere {
        let refused = taken(other(change)).unwrap_err();
        assert_error!(refused, Error::OtherContext { found, .. } if found == place);
    }
    let types: [(&str, Change); 2] = [
        ("f64", |of| of.dtype = DLDataType::F64),
        ("of type 2, 32 bits, 4 lanes", |of| of.dtype.lanes = 4),
    ];
    for (dtype, change) in types {
        let refused = taken(other(change)).unwrap_err();
        assert_error!(
            refused,
            Error::ElementType { found, expected, .. } if found == dtype && expected == "f32"
        );
    }
    let odd = taken(other(|of| of.byte_offset = 2)).unwrap_err();
    assert_error!(odd, Error::Alignment { required: 4, .. });
    let null = taken(other(|of| of.data = std::ptr::null_mut())).unwrap_err();
    assert_error!(null, Error::MissingOperand { .. });
    for strides in [[1i64, 3], [2, 1]] {
        // SAFETY: there are two strides, and this test owns the header.
        let wrong = other(|of| unsafe { of.strides.copy_from(strides.as_ptr(), 2) });
        assert_error!(taken(wrong).unwrap_err(), Error::Operand { .. });
    }
}

#[test]
fn empty_tensors_and_numbers_fit() {
    let ctx = Context::cpu();
    for shape in [&[][..], &[0], &[2, 0], &[0, 2], &[1, 1, 1]] {
        let given: Managed<DLManagedTensor> =
            ctx.zeros::<f32>(shape).unwrap().into_dlpack().unwrap();
        assert_eq!(taken(given).unwrap().shape(), shape);
    }
}
