"""Text: vocabulary, streaming detokeniser, stop strings, chat templates, sampling."""

from hybridkern.text.detokenizer import Detokenizer
from hybridkern.text.fields import TokenizerWarning, TokenType
from hybridkern.text.vocabulary import Vocabulary

__all__ = ["Detokenizer", "TokenType", "TokenizerWarning", "Vocabulary"]
