// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"vernier.dev/vernier/api/v1alpha1"
)

// goodFor is how long a token that was good is not asked about again: a reader who
// loses his rights sees the page for as long.
const goodFor = 30 * time.Second

// maxRemembered bounds the tokens that are remembered.
const maxRemembered = 1000

// TokenReview asks the API server who bears a token, and whether he may list
// ledgers.
type TokenReview struct {
	kube kubernetes.Interface
	now  func() time.Time

	mu   sync.Mutex
	good map[[sha256.Size]byte]time.Time
}

// NewTokenReview asks with the client's rights, which must include to create
// tokenreviews and subjectaccessreviews.
func NewTokenReview(kube kubernetes.Interface) *TokenReview {
	return &TokenReview{kube: kube, now: time.Now, good: map[[sha256.Size]byte]time.Time{}}
}

// Check says nil where the token's bearer may list ledgers.
func (t *TokenReview) Check(ctx context.Context, token string) error {
	if token == "" {
		return errors.New("no token; make one with kubectl create token")
	}
	key := sha256.Sum256([]byte(token))
	if t.remembers(key) {
		return nil
	}
	who, err := t.kube.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	if !who.Status.Authenticated {
		return errors.New("the API server does not know this token, or it has expired; make one with kubectl create token")
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := t.kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Username, Groups: user.Groups, UID: user.UID, Extra: extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: v1alpha1.Group, Resource: "sliceledgers", Verb: "list"},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrAway, err)
	}
	if !may.Status.Allowed {
		return fmt.Errorf("%s may not list sliceledgers.%s; bind the cluster role vernier-viewer to it", user.Username, v1alpha1.Group)
	}
	t.remember(key)
	return nil
}

func (t *TokenReview) remembers(key [sha256.Size]byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	until, found := t.good[key]
	return found && t.now().Before(until)
}

func (t *TokenReview) remember(key [sha256.Size]byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.good) >= maxRemembered {
		clear(t.good)
	}
	t.good[key] = t.now().Add(goodFor)
}
