//! Tensor products and convolutions.

#[doc(hidden)]
#[macro_export]
macro_rules! table_applications {
    ($m:ident $($before:tt)*) => {
        $crate::table_general! { $m
            $($before)*
            tensor_product "tensor_product" TensorProductParams sm_80 TensorProduct {
                tensor_product_items_f32: Csr, F32, TensorItems;
                tensor_product_items_f64: Csr, F64, TensorItems;
                tensor_product_items_f16: Csr, F16, TensorItems;
                tensor_product_items_bf16: Csr, Bf16, TensorItems;
                tensor_product_channels_f32: Csr, F32, TensorChannels;
                tensor_product_channels_f64: Csr, F64, TensorChannels;
                tensor_product_channels_f16: Csr, F16, TensorChannels;
                tensor_product_channels_bf16: Csr, Bf16, TensorChannels;
                tensor_product_sums_f32: Csr, F32, TensorSums;
                tensor_product_sums_f64: Csr, F64, TensorSums;
                tensor_product_sums_f16: Csr, F16, TensorSums;
                tensor_product_sums_bf16: Csr, Bf16, TensorSums;
                tensor_product_connected_f32: Csr, F32, TensorConnected;
                tensor_product_connected_f64: Csr, F64, TensorConnected;
                tensor_product_connected_f16: Csr, F16, TensorConnected;
                tensor_product_connected_bf16: Csr, Bf16, TensorConnected;
                tensor_product_traces_f32: Csr, F32, TensorTraces;
                tensor_product_traces_f64: Csr, F64, TensorTraces;
                tensor_product_traces_f16: Csr, F16, TensorTraces;
                tensor_product_traces_bf16: Csr, Bf16, TensorTraces;
                tensor_product_weights_f32: Csr, F32, TensorWeights;
                tensor_product_weights_f64: Csr, F64, TensorWeights;
                tensor_product_weights_f16: Csr, F16, TensorWeights;
                tensor_product_weights_bf16: Csr, Bf16, TensorWeights;
                tensor_product_own_connected_f32: Csr, F32, TensorOwnConnected;
                tensor_product_own_connected_f64: Csr, F64, TensorOwnConnected;
                tensor_product_own_connected_f16: Csr, F16, TensorOwnConnected;
                tensor_product_own_connected_bf16: Csr, Bf16, TensorOwnConnected;
                tensor_product_own_traces_f32: Csr, F32, TensorOwnTraces;
                tensor_product_own_traces_f64: Csr, F64, TensorOwnTraces;
                tensor_product_own_traces_f16: Csr, F16, TensorOwnTraces;
                tensor_product_own_traces_bf16: Csr, Bf16, TensorOwnTraces;
                tensor_product_own_weights_f32: Csr, F32, TensorOwnWeights;
                tensor_product_own_weights_f64: Csr, F64, TensorOwnWeights;
                tensor_product_own_weights_f16: Csr, F16, TensorOwnWeights;
                tensor_product_own_weights_bf16: Csr, Bf16, TensorOwnWeights;
            }
            conv "conv" ConvParams sm_90a Convolution {
                conv_f16_n64: Direct, F16, Gathered<1, PLAIN>;
                conv_f16_n128: Direct, F16, Gathered<2, PLAIN>;
                conv_f16_turned_n64: Direct, F16, Gathered<1, B_COLUMNS>;
                conv_f16_turned_n128: Direct, F16, Gathered<2, B_COLUMNS>;
                conv_bf16_n64: Direct, Bf16, Gathered<1, PLAIN>;
                conv_bf16_n128: Direct, Bf16, Gathered<2, PLAIN>;
                conv_bf16_turned_n64: Direct, Bf16, Gathered<1, B_COLUMNS>;
                conv_bf16_turned_n128: Direct, Bf16, Gathered<2, B_COLUMNS>;
                conv_tf32_turned_n64: Direct, Tf32, Gathered<1, B_COLUMNS, 4>;
                conv_tf32_turned_n128: Direct, Tf32, Gathered<2, B_COLUMNS, 4>;
            }
            conv_grad "conv_grad" ConvWordsParams sm_90a Convolution {
                conv_grad_f16_64x64: Direct, F16, GatheredPairs<1, 1>;
                conv_grad_f16_64x128: Direct, F16, GatheredPairs<1, 2>;
                conv_grad_f16_128x64: Direct, F16, GatheredPairs<2, 1>;
                conv_grad_f16_128x128: Direct, F16, GatheredPairs<2, 2>;
                conv_grad_bf16_64x64: Direct, Bf16, GatheredPairs<1, 1>;
                conv_grad_bf16_64x128: Direct, Bf16, GatheredPairs<1, 2>;
                conv_grad_bf16_128x64: Direct, Bf16, GatheredPairs<2, 1>;
                conv_grad_bf16_128x128: Direct, Bf16, GatheredPairs<2, 2>;
            }
            conv_simt "conv_simt" ConvWordsParams sm_80 Convolution {
                conv_simt_f32_64x128: Direct, F32, GatheredWords<2, 2, true>;
                conv_simt_f32_128x64: Direct, F32, GatheredWords<4, 1, true>;
                conv_simt_f32_any: Direct, F32, GatheredWords<4, 2, false>;
                conv_simt_f16_any: Direct, F16, GatheredWords<4, 2, false>;
                conv_simt_bf16_any: Direct, Bf16, GatheredWords<4, 2, false>;
            }
            conv_pairs "conv_pairs" ConvWordsParams sm_80 Convolution {
                conv_pairs_f32_64x64: Direct, F32, Paired<64, true>;
                conv_pairs_f32_128x128: Direct, F32, Paired<128, true>;
                conv_pairs_tf32_64x64: Direct, Tf32, Paired<64, true>;
                conv_pairs_tf32_128x128: Direct, Tf32, Paired<128, true>;
                conv_pairs_f32_any: Direct, F32, Paired<128, false>;
                conv_pairs_f16_any: Direct, F16, Paired<128, false>;
                conv_pairs_bf16_any: Direct, Bf16, Paired<128, false>;
            }
            conv_steps "conv_steps" ConvStepParams sm_80 Convolution {
                conv_turn_16: Direct, F16, ConvStep<CONV_TURN>;
                conv_turn_32: Direct, F32, ConvStep<CONV_TURN>;
                conv_sum_f32: Direct, F32, ConvStep<CONV_SUM>;
                conv_sum_f16: Direct, F16, ConvStep<CONV_SUM>;
                conv_sum_bf16: Direct, Bf16, ConvStep<CONV_SUM>;
                conv_insert: Direct, F32, ConvStep<CONV_INSERT>;
                conv_neighbours: Direct, F32, ConvStep<CONV_NEIGHBOURS>;
                conv_arrange: Direct, F32, ConvStep<CONV_ARRANGE>;
                conv_schedule: Direct, F32, ConvStep<CONV_SCHEDULE>;
                conv_stride: Direct, F32, ConvStep<CONV_STRIDE>;
                conv_first: Direct, F32, ConvStep<CONV_FIRST>;
                conv_take: Direct, F32, ConvStep<CONV_TAKE>;
                conv_transpose: Direct, F32, ConvStep<CONV_TRANSPOSE>;
                conv_keys: Direct, F32, ConvStep<CONV_KEYS>;
            }
            message "message" MessageParams sm_80 Message {
                message_first_f32: Direct, F32, FirstLargest;
                message_first_f64: Direct, F64, FirstLargest;
                message_first_f16: Direct, F16, FirstLargest;
                message_first_bf16: Direct, Bf16, FirstLargest;
                message_pick_f32: Direct, F32, PickLargest;
                message_pick_f64: Direct, F64, PickLargest;
                message_pick_f16: Direct, F16, PickLargest;
                message_pick_bf16: Direct, Bf16, PickLargest;
                message_weights_f32: Direct, F32, LargestWeights;
                message_weights_f64: Direct, F64, LargestWeights;
                message_weights_f16: Direct, F16, LargestWeights;
                message_weights_bf16: Direct, Bf16, LargestWeights;
            }
        }
    };
}
