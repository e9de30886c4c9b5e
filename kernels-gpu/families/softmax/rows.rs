//! Kernels of the family `softmax`: rows of the kernel table.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_softmax {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            softmax {
                "softmax" SoftmaxParams Own {
                    softmax_f32 F32: Csr, SoftmaxRows<4, 8, false>;
                    softmax_f16 F16, softmax_bf16 Bf16: Csr, SoftmaxRows<8, 4, false>;
                    softmax_gradient_f32 F32: Csr, SoftmaxRows<4, 8, true>;
                    softmax_gradient_f16 F16, softmax_gradient_bf16 Bf16: Csr, SoftmaxRows<8, 4, true>;
                }
            }
        }
    };
}
