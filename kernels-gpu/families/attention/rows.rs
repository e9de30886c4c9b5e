//! The rows of the family `attention`.

#[doc(hidden)]
#[macro_export]
macro_rules! rows_attention {
    ($rest:tt $($before:tt)*) => {
        $crate::gather_rows! { $rest $($before)*
            attention {
                attention "attention" AttentionParams sm_90a Attention {
                    attention_f16_d64: Block, F16, Attention<1>;
                    attention_f16_d128: Block, F16, Attention<2>;
                    attention_bf16_d64: Block, Bf16, Attention<1>;
                    attention_bf16_d128: Block, Bf16, Attention<2>;
                }
                decode "decode" DecodeParams sm_90a Own {
                    attention_decode_f16_d64: Direct, F16, Decode<1>;
                    attention_decode_f16_d128: Direct, F16, Decode<2>;
                    attention_decode_bf16_d64: Direct, Bf16, Decode<1>;
                    attention_decode_bf16_d128: Direct, Bf16, Decode<2>;
                }
                key_blocks "key_blocks" KeyBlocksParams sm_80 Own {
                    attention_key_blocks: Direct, F32, KeyBlocks;
                }
                masks "masks" MaskParams sm_80 Detection {
                    attention_masks: Direct, F32, MaskTiles;
                }
            }
        }
    };
}
