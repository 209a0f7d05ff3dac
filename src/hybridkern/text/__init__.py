"""Text: vocabulary, streaming detokeniser, stop strings, chat templates, sampling."""

from hybridkern.text.chat import ChatTemplate
from hybridkern.text.detokenizer import Detokenizer
from hybridkern.text.fields import TokenizerWarning, TokenType
from hybridkern.text.stop import StopMatcher
from hybridkern.text.vocabulary import Vocabulary

__all__ = ["ChatTemplate", "Detokenizer", "StopMatcher", "TokenType", "TokenizerWarning", "Vocabulary"]
